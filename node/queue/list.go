package queue

// list is a doubly linked list through nodes that stand in their owners, so
// that pushing, and removing from the middle, neither search nor allocate.
type list[T any] struct {
	head, tail *node[T]
	n          int
}

// node is an owner's place in at most one list at a time.
type node[T any] struct {
	prev, next *node[T]
	in         *list[T]
	owner      *T
}

func (l *list[T]) front() *T {
	if l.head == nil {
		return nil
	}
	return l.head.owner
}

func (l *list[T]) pushBack(n *node[T]) {
	n.in, n.prev, n.next = l, l.tail, nil
	if l.tail == nil {
		l.head = n
	} else {
		l.tail.next = n
	}
	l.tail = n
	l.n++
}

// unlink takes n out of the list it is in; a node in no list stays as it is.
func (n *node[T]) unlink() {
	l := n.in
	if l == nil {
		return
	}
	if n.prev == nil {
		l.head = n.next
	} else {
		n.prev.next = n.next
	}
	if n.next == nil {
		l.tail = n.prev
	} else {
		n.next.prev = n.prev
	}
	l.n--
	n.in, n.prev, n.next = nil, nil, nil
}
