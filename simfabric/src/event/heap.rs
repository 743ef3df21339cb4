//! A heap with four children per node over 16-byte entries: four children have the size of one
//! cache line.

/// A packed event: time in the upper half; order, kind and index in the lower.
pub(super) type PackedEvent = u128;

/// Entries with the least on top.
#[derive(Debug, Default)]
pub(super) struct Heap(Vec<PackedEvent>);

impl Heap {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(super) fn first(&self) -> Option<PackedEvent> {
        self.0.first().copied()
    }

    pub(super) fn push(&mut self, entry: PackedEvent) {
        let mut hole = self.0.len();
        self.0.push(entry);
        while hole > 0 {
            let parent = (hole - 1) / 4;
            if self.0[parent] <= entry {
                break;
            }
            self.0[hole] = self.0[parent];
            hole = parent;
        }
        self.0[hole] = entry;
    }

    pub(super) fn pop(&mut self) -> Option<PackedEvent> {
        let last = self.0.pop()?;
        Some(match self.0.first_mut() {
            None => last,
            Some(first) => {
                let top = std::mem::replace(first, last);
                // The last entry takes the root's place and sinks; most often it belongs near the
                // bottom.
                self.sift_down(last);
                top
            }
        })
    }

    fn sift_down(&mut self, entry: PackedEvent) {
        let heap = &mut self.0[..];
        let mut hole = 0;
        loop {
            let first = 4 * hole + 1;
            if first >= heap.len() {
                break;
            }
            // Four children are 64 bytes in a row, on one cache line or two neighbours, and there
            // are half the levels of a binary heap.
            let end = heap.len().min(first + 4);
            let (mut least, mut at) = (heap[first], first);
            for (child, &value) in heap.iter().enumerate().take(end).skip(first + 1) {
                if value < least {
                    (least, at) = (value, child);
                }
            }
            if entry <= least {
                break;
            }
            heap[hole] = least;
            hole = at;
        }
        heap[hole] = entry;
    }
}
