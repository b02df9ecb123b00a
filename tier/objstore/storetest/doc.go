// Package storetest is the suite that every objstore backend passes: what the
// interface promises, as tests. A store that passes can hold an archive.
//
//	func TestConformance(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) objstore.Store { ... })
//	}
//
// Each test opens a store of its own, which must be empty; the suite closes it.
package storetest
