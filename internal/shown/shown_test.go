package shown_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/weirhq/weir/internal/shown"
)

func TestEntry(t *testing.T) {
	for key, want := range map[string]string{
		"sk_prod_abcdefghijklc123": "sk_pro…23", "secret": "s…", "ab": "…", "": "…", " sk_1 ": "…",
		"203.0.113.7": "203.0.113.7", "2001:db8::/32": "2001:db8::/32", "sk_old_*": "sk_old_*", "dead.beef.cafe": "de…", "a\x1b[2J_______": "a\ufffd…",
	} {
		if got := shown.Entry(key); got != want {
			t.Errorf("%q is shown as %q, want %q", key, got, want)
		}
	}
}

// People sometimes paste keys into fields for names.
func TestName(t *testing.T) {
	for name, want := range map[string]string{
		"orders": "orders", "login-v2": "login-v2", "": "", "sk_live_0123456789abcdef0123456789": "sk_live_…789", "a rule sk_live_0123456789abcdef0123456789, or two": "a rule sk_live_…789, or two",
		"4111-1111-1111-1111": "4111…11", strings.Repeat("x", 65): strings.Repeat("x", 64) + "…", "checkout-per-organisation": "checkout-per-organisation",
	} {
		if got := shown.Name(name); got != want {
			t.Errorf("%q is shown as %q, want %q", name, got, want)
		}
	}
}

// Clients may send anything as a key, so text that would be harmless in a list is masked here.
func TestKey(t *testing.T) {
	for key, want := range map[string]string{
		"sk_prod_abcdefghijklmnopqrstuvwxc123": "sk_prod_…c123", "pa*sword": "p…", "203.0.113.7": "2…", "\nb\x1b[2J_____": "\ufffd…", "": "…",
		"0123456789abcdef": "012…f", "HOTKEY_A_KEY": "HO…", "mail.of@a.com": "ma…",
		strings.Repeat("é", 5000): "éééééééé…éééé",
	} {
		if got := shown.Key(key); got != want {
			t.Errorf("%q is shown as %q, want %q", key, got, want)
		}
	}
}

// At least two thirds of a key stay hidden, and at least 12 characters if it has 14 or more.
func TestAKeyIsHiddenEnough(t *testing.T) {
	for n := range 200 {
		visible := utf8.RuneCountInString(shown.Key(strings.Repeat("k", n))) - 1
		if visible > 12 || 3*visible > n || n >= 14 && n-visible < 12 {
			t.Errorf("of %d characters %d are shown", n, visible)
		}
	}
}
