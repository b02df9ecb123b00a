package restore_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/restore"
)

// A segment file that does not sync ends the restore: no data directory appears
// that lacks what the page cache had and the disk did not (I1, I5, I16). It is
// run again, and each of more partitions than there are lanes has its records, in
// order, out of several objects.
func TestImportThatDoesNotSync(t *testing.T) {
	const partitions, objects = 19, 4
	w := newWorld(t, partitions)
	wr := w.writer(firstI, 1, 1)
	for o := range int64(objects) {
		for p := range uint32(partitions) {
			wr.records(w.id(p), 1, 3*o, 3)
		}
		wr.ship()
	}
	o := w.options()
	bad := filepath.Join("topics", w.topic.ID.String(), "7")
	o.FS = errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSyncData && strings.Contains(op.Path, bad) {
			return syscall.EIO
		}
		return nil
	}))
	if _, err := restore.Run(context.Background(), o); !errcode.Is(err, errcode.Poisoned) || !strings.Contains(fmt.Sprint(err), w.id(7).String()) {
		t.Fatal(err)
	}
	if names, err := vfs.Default.List(o.Dir); err == nil {
		t.Fatalf("%s is there: %v", o.Dir, names)
	}
	dir, report := w.restore()
	if report.TailRecords != 3*partitions*objects {
		t.Fatalf("%+v", report)
	}
	for p := range uint32(partitions) {
		if got, want := w.records(dir, p, 0), values(firstI, 1, 0, 3*objects); !slices.Equal(got, want) {
			t.Fatalf("partition %d: %q, want %q", p, got, want)
		}
	}
}
