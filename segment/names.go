package segment

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

const (
	activeExt = ".log"
	sealedExt = ".seg"
	cutExt    = ".tmp" // the valid prefix while Recover copies it
)

// ActiveName is the name of the active segment that begins at base.
func ActiveName(base int64) string { return fmt.Sprintf("%020d%s", base, activeExt) }

// SealedName is the name of the sealed segment that begins at base.
func SealedName(base int64) string { return fmt.Sprintf("%020d%s", base, sealedExt) }

// ParseName reads a name that ActiveName or SealedName wrote. Other names in
// the directory, left-over copies among them, are not segments.
func ParseName(name string) (base int64, sealed, ok bool) {
	digits, isSealed := strings.CutSuffix(name, sealedExt)
	if !isSealed {
		var isActive bool
		if digits, isActive = strings.CutSuffix(name, activeExt); !isActive {
			return 0, false, false
		}
	}
	if len(digits) != 20 || strings.Trim(digits, "0123456789") != "" {
		return 0, false, false
	}
	base, err := strconv.ParseInt(digits, 10, 64)
	return base, isSealed, err == nil
}

// MakeDir creates dir and its missing parents so that they survive a power
// loss: the directory entry of each level is synced in the level above, up to
// root, which exists.
func MakeDir(fs vfs.FS, root, dir string) error {
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return errcode.Wrap(errcode.Storage, err, "create directory %s", dir)
	}
	for dir != root {
		parent := fs.PathDir(dir)
		if parent == dir {
			return errcode.New(errcode.InvalidArgument, "%s is not a parent of the partition's directory", root)
		}
		if err := syncDir(fs, parent); err != nil {
			return err
		}
		dir = parent
	}
	return nil
}

// syncDir makes the names in dir durable.
func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "open directory %s", dir)
	}
	if err := d.Sync(); err != nil {
		_ = d.Close() // the sync's error is the one that matters
		return errcode.New(errcode.Poisoned, "sync directory %s: %w; its partition takes no writes until a restart", dir, err)
	}
	return errcode.Wrap(errcode.Storage, d.Close(), "close directory %s", dir)
}
