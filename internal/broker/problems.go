package broker

import (
	"fmt"
	"strings"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// maxProblems bounds what one refusal lists.
const maxProblems = 32

// Problems collects what is wrong with the fields of a request, in the order
// in which it was found, so that one answer names all of it. The zero value is
// ready.
type Problems struct {
	list   []string
	fields map[string]string
}

// Add notes what is wrong with a field. What exceeds the bound of a list is
// left out.
func (p *Problems) Add(field, format string, args ...any) {
	if p.Full() {
		return
	}
	msg := fmt.Sprintf(format, args...)
	if p.fields == nil {
		p.fields = make(map[string]string)
	}
	p.fields[field] = msg
	p.list = append(p.list, field+": "+msg)
}

// Full says that nothing more will be listed, so that looking on is of no use.
func (p *Problems) Full() bool { return len(p.list) >= maxProblems }

// Err is nil when nothing is wrong, else an error of code invalid_argument with
// a fact "fields", a map from field to what is wrong with it. What names the
// thing that has the fields.
func (p *Problems) Err(what string) error {
	if len(p.list) == 0 {
		return nil
	}
	return errcode.New(errcode.InvalidArgument, "%s not accepted: %s", what, strings.Join(p.list, "; ")).With("fields", p.fields)
}

func (p *Problems) between(field string, v *int64, low, high int64) {
	if v != nil && (*v < low || *v > high) {
		p.Add(field, "%d is not in %d..%d", *v, low, high)
	}
}

func (p *Problems) oneOf(field string, v *string, allowed ...string) {
	if v == nil {
		return
	}
	for _, a := range allowed {
		if *v == a {
			return
		}
	}
	p.Add(field, "%.40q is not one of %s", *v, strings.Join(allowed, ", "))
}
