package queue

// readyHeap is a binary heap of the returned records that may be handed out
// now, lowest offset first. Each record knows its place, so that one which is
// settled while it waits leaves in logarithmic time.
type readyHeap []*rec

func (h readyHeap) top() *rec {
	if len(h) == 0 {
		return nil
	}
	return h[0]
}

func (h *readyHeap) push(r *rec) {
	*h = append(*h, r)
	h.up(len(*h)-1, r)
}

// remove takes r, which is in the heap, out of it.
func (h *readyHeap) remove(r *rec) {
	s := *h
	i, last := int(r.place), len(s)-1
	moved := s[last]
	s[last] = nil
	*h = s[:last]
	if i == last {
		return
	}
	h.down(i, moved)
	if int(moved.place) == i {
		h.up(i, moved)
	}
}

// up puts r at i or above.
func (h readyHeap) up(i int, r *rec) {
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent].offset < r.offset {
			break
		}
		h.set(i, h[parent])
		i = parent
	}
	h.set(i, r)
}

// down puts r at i or below.
func (h readyHeap) down(i int, r *rec) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1].offset < h[child].offset {
			child++
		}
		if r.offset < h[child].offset {
			break
		}
		h.set(i, h[child])
		i = child
	}
	h.set(i, r)
}

func (h readyHeap) set(i int, r *rec) {
	h[i] = r
	r.place = int32(i)
}
