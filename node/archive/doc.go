// Package archive encodes what a node writes into the archive beside segments
// and their chains: claims of the cluster, the OPEN and FENCE of an
// incarnation, tombstones, shipped WAL and state objects. It does no IO.
//
// Every decoder refuses a version that it does not know by name and allocates
// in proportion to what it was given, up to a bound. docs/formats/shipped-wal.md
// has the bytes.
package archive
