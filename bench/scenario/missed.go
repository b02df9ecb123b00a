package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/tidemark-mq/tidemark/bench/load"
	"github.com/tidemark-mq/tidemark/bench/rawhttp"
	"github.com/tidemark-mq/tidemark/bench/records"
	"github.com/tidemark-mq/tidemark/bench/report"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// again says whether a refusal leaves a request that is worth sending once more, and
// whether the one that was refused may have been applied. An answer without a word
// about that, as proxies give it, is judged by its status.
func again(e *rawhttp.RefusedError) (worth, unsure bool) {
	switch e.Retry {
	case errcode.RetryAfter.String(), errcode.RetryRedirect.String():
		return true, false
	case errcode.RetryUnknown.String():
		return true, true
	case errcode.RetryNever.String():
		return false, false
	}
	switch e.Status {
	case http.StatusTooManyRequests:
		return true, false
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true, true
	default:
		return false, false
	}
}

// missed notes n records of a source, from a sequence on, whose request failed, and
// turns its error into one that the open loop counts; other errors stay what they are.
func (t *trial) missed(src *records.Source, seq uint64, n int, err error) error {
	var refused *rawhttp.RefusedError
	var none *rawhttp.NoAnswerError
	var sent bool
	switch {
	case errors.As(err, &refused):
		var worth bool
		if worth, sent = again(refused); !worth {
			return err
		}
		err = &load.RefusedError{Status: refused.Status, After: refused.After, Err: err}
	case errors.As(err, &none):
		sent = none.Sent
		err = &load.UnansweredError{Timeout: none.Timeout(), Err: err}
	default:
		return err
	}
	if !sent {
		t.ledger.Refused(src.Stream(), seq, n)
		return err
	}
	if too := t.ledger.Unsure(src.Stream(), seq, n); too != nil {
		return fmt.Errorf("%w; the last error: %s", too, err.Error())
	}
	return err
}

// How long one waits after a refusal.
const (
	bearLeast = 10 * time.Millisecond
	bearMost  = time.Second
)

// bear waits after a refusal that says that nothing was applied, as long as it asks
// for and at most a second, and reports whether to send the request again: not after
// any other error, and not when nothing went on for too long.
func bear(ctx context.Context, err error, since time.Time) bool {
	var refused *rawhttp.RefusedError
	if !errors.As(err, &refused) {
		return false
	}
	if worth, unsure := again(refused); !worth || unsure || time.Since(since) > stalled {
		return false
	}
	wait := time.NewTimer(min(max(refused.After, bearLeast), bearMost))
	defer wait.Stop()
	select {
	case <-wait.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// noteMissed puts into the report's notes what an open loop missed.
func (b *bench) noteMissed(name string, run int, res *load.Result) {
	if said := report.Missed(&res.Missed); said != "" {
		b.rep.Notes = append(b.rep.Notes, fmt.Sprintf("%s, run %d: %s", name, run, said))
	}
}

// nothing is an error when no record at all was accepted.
func (t *trial) nothing(res *load.Result) error {
	if accepted, _ := t.ledger.Counts(); accepted > 0 {
		return nil
	}
	return fmt.Errorf("no record was accepted: %s", cmpOr(report.Missed(&res.Missed), "no request was sent"))
}
