package node

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/wal"
)

// replayLogged is how often a long replay says in the log how far it is.
const replayLogged = 5 * time.Second

// replay tells how far the replay of the log is, and ends it when the start is
// called off.
type replay struct {
	n           *Node
	ctx         context.Context
	done, total int64 // bytes
	told        int64 // mebibytes last told
	logged      time.Time
}

// newReplay begins a replay of the log in dir.
func (n *Node) newReplay(ctx context.Context, dir string) *replay {
	r := &replay{n: n, ctx: ctx, told: -1, logged: n.opts.Now()}
	names, err := n.opts.FS.List(dir)
	if err != nil {
		names = nil // opening the log says what is wrong
	}
	for _, name := range names {
		if !strings.HasSuffix(name, ".wal") { // spare files hold nothing
			continue
		}
		if st, err := n.opts.FS.Stat(n.opts.FS.PathJoin(dir, name)); err == nil {
			r.total += st.Size()
		}
	}
	r.tell()
	return r
}

// frame counts a frame, and returns why the replay must end.
func (r *replay) frame(f wal.Frame) error {
	r.done += int64(len(f.Body))
	if mib := r.done >> 20; mib == r.told {
		return nil
	}
	if err := context.Cause(r.ctx); err != nil {
		return errcode.New(errcode.Canceled, "the start was called off while the log was replayed: %w", err)
	}
	r.tell()
	return nil
}

func (r *replay) tell() {
	r.told = r.done >> 20
	// The last file is seldom full, and files that nobody needs are passed over.
	r.n.opts.OnProgress(fmt.Sprintf("replaying the log, %d of at most %d MiB", r.told, (r.total+1<<20-1)>>20))
	if now := r.n.opts.Now(); now.Sub(r.logged) >= replayLogged {
		r.logged = now
		r.n.opts.Logger.Info("replaying the log", "mib", r.told, "of_at_most_mib", (r.total+1<<20-1)>>20)
	}
}
