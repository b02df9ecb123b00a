package raftmeta

import (
	"errors"
	"testing"

	"github.com/hashicorp/raft"
)

// Raft reads its log for a gauge on a goroutine that outlives its Shutdown. A
// read that comes with or after the close finds nothing, where a closed Pebble
// would end the process.
func TestReadsBesideAndAfterClose(t *testing.T) {
	f := newFatal()
	s, err := openStore(testFS, t.TempDir(), false, f, Options{}.withDefaults().Logger)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.StoreLog(&raft.Log{Index: 1, Term: 1, Data: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	read, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		for {
			var l raft.Log
			err := s.GetLog(1, &l)
			if err != nil {
				ended <- err
				return
			}
			select {
			case read <- struct{}{}:
			default:
			}
		}
	}()
	<-read
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("a read after the close: %v", err)
	}
	if err := f.err(); err != nil {
		t.Errorf("the plane is broken: %v", err)
	}
}
