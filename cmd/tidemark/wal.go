package main

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/tidemark-mq/tidemark/node/datadir"
)

func newWAL(p *process) *cobra.Command {
	cmd := family("wal", "Look into a write-ahead log on disk, and repair a damaged one",
		"  tidemark wal dump /var/lib/tidemark", newWALDump(p), newWALRepair(p))
	cmd.Long = `Look into a write-ahead log on disk, without the node, and repair a damaged one.`
	return cmd
}

// logPath finds the log behind what was named: a data directory, its wal
// folder, or one file of it. dataDir is "" when it is not known.
func logPath(named string) (path, dataDir string, err error) {
	path = filepath.Clean(named)
	info, err := os.Stat(path)
	if err != nil {
		return "", "", fmt.Errorf("%s: %w", named, errors.Unwrap(err))
	}
	if !info.IsDir() {
		return path, dataDirOf(filepath.Dir(filepath.Dir(path))), nil
	}
	if inner := filepath.Join(path, "wal"); isDir(inner) {
		return inner, path, nil
	}
	if names, _ := filepath.Glob(filepath.Join(path, "*.wal")); len(names) == 0 && filepath.Base(path) != "wal" {
		return "", "", fmt.Errorf("%s is no data directory and holds no log: there is neither a folder wal nor a file like 00000000000000000001.wal", named)
	}
	return path, dataDirOf(filepath.Dir(path)), nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// dataDirOf returns dir when it is a data directory.
func dataDirOf(dir string) string {
	if _, err := os.Stat(filepath.Join(dir, "identity.json")); err != nil {
		return ""
	}
	return dir
}

// holder returns the id of the process that holds a data directory, 0 when none
// does or nobody can tell. It only asks: taking the lock, however shortly, would
// make a node that starts at that moment fail.
func holder(dataDir string) int {
	if dataDir == "" {
		return 0
	}
	f, err := os.Open(filepath.Join(dataDir, datadir.LockFile))
	if errors.Is(err, iofs.ErrNotExist) || err != nil {
		return 0
	}
	defer f.Close()
	query := unix.Flock_t{Type: unix.F_WRLCK, Whence: 0}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &query); err != nil || query.Type == unix.F_UNLCK {
		return 0
	}
	return int(query.Pid)
}
