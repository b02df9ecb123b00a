// Package mem is an objstore.Store in memory: for tests, and as the model that
// other backends are compared with. It keeps nothing.
//
// Objects are never changed after they were put, so bodies read without a lock.
// There are no goroutines.
package mem
