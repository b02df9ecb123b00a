package garbage

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "write the transcripts anew")

// ids are the random ids of topics and pages in keys.
var ids = regexp.MustCompile(`(t|x)/[0-9a-f]{16}`)

// The requests of a segment delete and of a topic purge, to the letter and in
// order: what is asked before, what is deleted, what is looked at afterwards.
// Every line is money, and every line before a delete is a confirmation.
func TestTranscripts(t *testing.T) {
	for name, run := range map[string]func(w *world){
		"segments": func(w *world) {
			id := w.topic("t")
			w.upload(id, 4)
			w.turn()
			w.trim(id, 30)
			w.pass(testGrace)
			w.count.Reset()
			w.turn()
		},
		"topic": func(w *world) {
			w.doom("t", 3)
			w.turn()
			w.pass(testGrace)
			w.export()
			w.count.Reset()
			w.turn()
		},
		"log": func(w *world) {
			w.wal(1, 10)
			w.wal(10, 20)
			w.state(19, 20)
			w.state(20, 21)
			w.turn()
			w.pass(testGrace)
			w.count.Reset()
			w.turn()
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(o *Options) { o.OrphanInterval = 1000 * time.Hour }) // no look in between
			run(w)
			got := ids.ReplaceAllString(w.count.Transcript(), "$1/<topic>")
			path := filepath.Join("testdata", name+".txt")
			if *rewrite {
				if err := os.MkdirAll("testdata", 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			// One of the deleted keys is looked at, whichever.
			sampled := regexp.MustCompile(`get_range (t|wal)/\S+ \[0,1\): not_found`)
			if sampled.ReplaceAllString(got, "sample") != sampled.ReplaceAllString(string(want), "sample") {
				t.Fatalf("the requests are\n%s\nwere\n%s", got, want)
			}
		})
	}
}
