package report

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine is what a benchmark ran on. What cannot be found out is "" or 0.
type Machine struct {
	CPU        string  `json:"cpu"`
	Cores      int     `json:"cores"`
	MemoryGiB  float64 `json:"memory_gib"`
	OS         string  `json:"os"` // kernel and its version
	Arch       string  `json:"arch"`
	Go         string  `json:"go"`
	LoadBefore string  `json:"load_before"` // averages of 1, 5 and 15 minutes
	LoadAfter  string  `json:"load_after"`
	FileSystem string  `json:"file_system,omitempty"` // of the data, where this program made them
}

// ThisMachine looks at the machine.
func ThisMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), Arch: runtime.GOARCH, Go: runtime.Version(), OS: runtime.GOOS, LoadBefore: LoadAverage()}
	m.CPU = field("/proc/cpuinfo", "model name")
	if kib, err := strconv.ParseFloat(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB"), 64); err == nil {
		m.MemoryGiB = float64(int(kib/(1<<20)*10)) / 10
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.OS = text(name.Sysname[:]) + " " + text(name.Release[:])
	}
	return m
}

// LoadAverage returns the load averages of the machine.
func LoadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if f := strings.Fields(string(b)); err == nil && len(f) >= 3 {
		return strings.Join(f[:3], " ")
	}
	return ""
}

// FileSystem names the kind of file system of a path.
func FileSystem(path string) string {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return ""
	}
	names := map[int64]string{
		unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs",
		unix.TMPFS_MAGIC: "tmpfs: memory, no disk", unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.NFS_SUPER_MAGIC: "nfs",
	}
	if name, ok := names[int64(st.Type)]; ok { //nolint:unconvert // its type differs between architectures
		return name
	}
	return fmt.Sprintf("magic %#x", st.Type)
}

// Commit is the commit that this program was built from, as far as it knows.
func Commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	commit, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value[:min(len(s.Value), 12)]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = ", with changes"
		}
	}
	if commit == "" {
		return ""
	}
	return commit + dirty
}

func field(path, name string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	r := bufio.NewScanner(io.LimitReader(bytes.NewReader(b), 1<<20))
	for r.Scan() {
		if key, value, ok := strings.Cut(r.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}
