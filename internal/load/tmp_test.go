package load
import ("testing";"time";"context";"os";"github.com/weirhq/weir";"github.com/weirhq/weir/memstore")
func TestTmp(t *testing.T){
 set,_:=GenerousRules()
 tg:=NewInProcess(weir.NewLimiter(memstore.New(memstore.Options{}),set,weir.Options{}),"x",1000,Check{KeyPrefix:"k",Cost:1})
 r,_:=Run(context.Background(),Plan{Duration:5*time.Second,Warmup:time.Second/5,Workers:4,Rate:5000,Keys:1000},tg,nil)
 r.WriteText(os.Stdout)
}
