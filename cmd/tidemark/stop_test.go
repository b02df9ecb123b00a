package main

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// Proves that a stop while the archive is away ends with 0 and says what is not in
// the archive, and that the next start ships it.
func TestStopWhileTheArchiveIsAway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := devServe(t, dir, "--wal-interval", "1h")
	c := s.client()
	c.must(t, "topic", "create", "orders", "--partitions", "1")
	c.stdin = "kept"
	c.must(t, "produce", "orders", "--ack", "archived")
	// From here on what stands where the archive's directories were are files.
	entries, err := os.ReadDir(dir + "/archive")
	if err != nil {
		t.Fatal(err)
	}
	away := func(back bool) {
		for _, e := range entries {
			var err error
			if at := dir + "/archive/" + e.Name(); back {
				err = errors.Join(os.Remove(at), os.Rename(dir+"/"+e.Name()+".away", at))
			} else {
				err = errors.Join(os.Rename(at, dir+"/"+e.Name()+".away"), os.WriteFile(at, nil, 0o600))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	away(false)
	c.stdin = "on disk alone"
	c.must(t, "produce", "orders", "--ack", "committed")
	if code := s.stop(); code != exitOK || !strings.Contains(s.stderr.String(), "not everything was shipped before the stop") {
		t.Errorf("exit %d: %s", code, s.stderr)
	}
	away(true)
	s = devServe(t, dir)
	c = s.client()
	c.stdin = "after"
	c.must(t, "produce", "orders", "--ack", "archived") // and with it what came before
	c.stdin = ""
	if all := records(t, c.must(t, "consume", "orders")); len(all) != 3 || string(all[1].Payload) != `"on disk alone"` {
		t.Errorf("%v", all)
	}
	if code := s.stop(); code != exitOK || strings.Contains(s.stderr.String(), "not everything was shipped") {
		t.Errorf("exit %d: %s", code, s.stderr)
	}
	if out := (command{}).must(t, "bucket", "verify", "file://"+dir+"/archive", "--deep"); !strings.Contains(out, " 0 problems") {
		t.Error(out)
	}
}
