package segment

import (
	"crypto/sha256"
	"hash"
	"hash/crc32"
)

// sums are the running checksums of a file that is written or read from its
// beginning. The data's and the whole file's SHA-256 are one sum, looked at twice.
type sums struct {
	h   hash.Hash
	crc uint32
	n   int64 // bytes taken
}

func newSums() sums { return sums{h: sha256.New()} }

func (s *sums) add(b []byte) {
	_, _ = s.h.Write(b) // never fails
	s.crc = crc32.Update(s.crc, castagnoli, b)
	s.n += int64(len(b))
}

// sha is the SHA-256 of what was added so far; the sum goes on.
func (s *sums) sha() [32]byte { return [32]byte(s.h.Sum(nil)) }
