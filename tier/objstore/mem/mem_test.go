package mem_test

import (
	"bytes"
	"testing"

	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
	"github.com/tidemark-mq/tidemark/tier/objstore/storetest"
)

// Proves that the memory store keeps the contract.
func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) objstore.Store { return mem.New(t.Name(), nil) })
}

// Proves that a space finds a store again by its name, which is what lets a test
// restart a node, and keeps stores apart.
func TestSpace(t *testing.T) {
	space := mem.NewSpace(nil)
	a := space.Store("a")
	if err := a.Put(t.Context(), "k", bytes.NewReader([]byte("v")), 1, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if data, _, err := objstore.ReadAll(t.Context(), space.Store("a"), "k", 10); err != nil || string(data) != "v" {
		t.Errorf("reopened: %q, %v", data, err)
	}
	if page, err := space.Store("b").List(t.Context(), "", "", 0); err != nil || len(page.Objects) != 0 {
		t.Errorf("another name: %+v, %v", page, err)
	}
}
