package restore

import (
	"errors"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// maxLooks bounds how often an archive is looked at that changes meanwhile.
const maxLooks = 5

// vanished is the error of an object that a list named and a read did not find,
// of one that a list did not name although its successor is there, or of a topic
// that was deleted while it was read: somebody ships or deletes beside the restore,
// and a new list shows what there is.
type vanished struct{ err error }

func (v *vanished) Error() string { return v.err.Error() }

func (v *vanished) Unwrap() error { return v.err }

// listed marks an absent object as one that a list had named.
func listed(err error) error {
	if errcode.Is(err, errcode.NotFound) {
		return &vanished{err}
	}
	return err
}

// steady calls fn, which lists and reads what it listed, again when something
// vanished in between. What is still missing after a few lists is lost.
func steady(fn func() error) error {
	for n := 1; ; n++ {
		err := fn()
		var v *vanished
		if !errors.As(err, &v) || n == maxLooks {
			return err
		}
	}
}
