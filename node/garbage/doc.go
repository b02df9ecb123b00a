// Package garbage deletes from the archive what nothing needs any more.
//
//	retired      segments that retention or a merge took out of a chain
//	topic        everything of a topic that was deleted
//	orphan       segments that no chain names: attempts that lost
//	wal          shipped WAL that state objects and chains cover
//	state        state objects, export   metadata exports: old ones
//	incarnation  what a fenced incarnation shipped, once its heir covers it
//	upload       multipart uploads that nobody goes on with
//
// # Guarantees
//
// Nothing that a chain names, a restore reads or a snapshot holds is deleted
// (I7). Every batch of deletes comes behind the same questions, asked in this
// order and all answered with yes: the Raft leader confirms, behind a barrier,
// what the deletion rests on (this incarnation owns the partition with this
// generation, or the topic was deleted, or the incarnation is retired); FENCE of
// this incarnation and the claim of a later cluster generation are absent; the
// chain, fenced in this generation and read again, does not name the key. No
// answer, or one that can mean two things, is a no for now (I10).
//
// Those questions end a zombie early, but nothing rests on their being fresh: a
// process may pause between the last answer and the delete. So what is deleted
// is such that no later owner can need it either. A trimmed or orphaned object
// is named by no entry that counts, and no owner adopts an object that no entry
// names. A topic's objects go only when the deletion stands in an export that a
// FENCE check confirmed, so whoever took over since has the deletion too; x/<id>
// is created before the first of them, for whoever restores an older export. WAL
// goes only below what every state object in the bucket needs. An incarnation's
// objects go only when a confirmed export calls it retired, and a restore passes
// such an incarnation over, however much of it is left. One of this cluster
// generation, which a repair of the log leaves unfenced, gets its FENCE from here
// once the confirmed metadata forbids it; then it is an old one like the others.
//
// The newest two state objects and exports always stay, FENCE and tombstones stay
// for ever. A crash at any point resumes: what is to go is found again in the
// metadata, by the list at the start, or by the sweep of orphans.
//
// One list is no proof that nothing is left, and one answer none that all of a
// batch is deleted. A topic and an old incarnation are done with when two looks,
// a grace apart, have found nothing; what a delete left of segments is an orphan,
// and the beginning of the log, the states and the exports is looked at again an
// orphan interval after something of them was deleted.
//
// Ages are measured on the process's monotonic clock; of objects from before
// the start the store's own clock says how much older than the newest one they
// are. A restart begins a grace anew.
//
// # What it costs
//
// At the start four LISTs, per page of 1,000 objects. Later LISTs come once per
// orphan interval and partition, for the snapshots, for each of log, states and
// exports of which something was deleted, and while a topic or an incarnation is
// being deleted. A batch of up to 1,000 keys costs one delete, two
// GETs of fences, one GET behind the end of each chain in it, and one GET of a
// byte that has to fail: a store that reports deletes which it did not do, or
// does not allow them, is noticed, shown and asked again ever more rarely, from a
// second to an hour.
//
// # Goroutines
//
// [Collector.Run] is the only one. [Collector.Discard], [Collector.Note] and
// [Collector.Report] never block on the store. Memory is bounded: at a bound an
// object is forgotten, and found again by a later list.
package garbage
