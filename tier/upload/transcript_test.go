package upload

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// The exact store calls, in order, of uploads and their failures, one segment
// at a time.
func TestTranscript(t *testing.T) {
	datadriven.Walk(t, "testdata/transcript", func(t *testing.T, path string) {
		fs, s := vfs.NewMem(), newStore()
		n := newNode(s)
		nonce := uint32(0)
		u := start(t, fs, n, func(c *Config) {
			c.Concurrency = 1
			c.Nonce = func() uint32 { nonce++; return nonce }
		})
		seen := 0
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "upload": // base=N records=N faults=what/what: of the next PUTs
				var base, records, events int
				var faults string
				d.ScanArgs(t, "base", &base)
				d.ScanArgs(t, "records", &records)
				d.MaybeScanArgs(t, "faults", &faults)
				events = 1
				plan := strings.Split(faults, "/")
				s.setHook(func(op, key string) (bool, error) {
					if op != "PUT" || len(plan) == 0 {
						return true, nil
					}
					f := plan[0]
					plan = plan[1:]
					switch f {
					case "lost":
						return true, errcode.New(errcode.Transient, "no answer")
					case "failed":
						return false, errcode.New(errcode.Throttled, "slow down")
					}
					return true, nil
				})
				enqueue(t, u, pid, seal(t, fs, pid, int64(base), int64(records), 10))
				out := n.wait(t, seen+events)[seen:]
				seen += len(out)
				return transcript(s) + strings.Join(out, "\n") + "\n"
			case "fence": // by another node
				c, err := manifest.Load(context.Background(), s.Store, pid, 0)
				if err != nil {
					t.Fatal(err)
				}
				_, err = c.Fence(context.Background(), manifest.Owner{ClusterGeneration: 1, Generation: 2, Incarnation: 0x88, Node: "n2"}, manifest.FenceParams{})
				return fmt.Sprintf("%v\n", err)
			}
			t.Fatalf("unknown command %s", d.Cmd)
			return ""
		})
	})
}

func transcript(s *store) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, c := range s.calls {
		b.WriteString(strings.Replace(c, manifest.PartitionPrefix(pid), "", 1) + "\n")
	}
	s.calls = nil
	return b.String()
}
