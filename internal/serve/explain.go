package serve

import "github.com/weirhq/weir/internal/admin"

// Explanation is weir.Explanation on the wire.
type Explanation = admin.Explanation

// Explain holds a request against rules.
var Explain = admin.Explain
