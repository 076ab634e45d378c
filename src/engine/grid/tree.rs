//! The prompts of one document as a tree of token runs.

use super::Job;

/// What is asked of a position, and how a served model would compute it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// Prompt, prefilled; nobody reads its logits.
    Prompt,
    /// The last token of a prompt, prefilled: it predicts the first token of the answer.
    Asked,
    /// A token of the answer, decoded: it predicts the next one.
    Answer,
}

/// A run of tokens of one class that every prompt through it has in common.
#[derive(Debug)]
pub(super) struct Node {
    /// Position of its first token.
    pub from: usize,
    /// Its tokens are `rows` of the tree, in order.
    pub rows: std::ops::Range<usize>,
    /// What is asked of them.
    pub class: Class,
    /// Its continuations, the one with the largest subtree last.
    pub children: Vec<usize>,
}

/// A document's prompts. Rows number the tokens that are really computed.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// The nodes, parents first.
    pub nodes: Vec<Node>,
    /// Nodes without a parent.
    pub roots: Vec<usize>,
    /// Token of every row.
    pub tokens: Vec<u32>,
    /// The jobs, and for each the rows that predict its answer tokens.
    pub jobs: Vec<(usize, Vec<usize>)>,
    /// Positions of the longest prompt.
    pub longest: usize,
}

/// A prompt on its way into the tree. The last token of an answer predicts nothing and is left out.
struct Path<'a> {
    job: usize,
    tokens: &'a [u32],
    answer_from: usize,
}

impl Path<'_> {
    fn class(&self, i: usize) -> Class {
        match i + 1 {
            n if n < self.answer_from => Class::Prompt,
            n if n == self.answer_from => Class::Asked,
            _ => Class::Answer,
        }
    }
    fn at(&self, i: usize) -> Option<(Class, u32)> {
        self.tokens.get(i).map(|t| (self.class(i), *t))
    }
}

impl Tree {
    /// The tree of the jobs of the given numbers.
    pub fn new<'a>(jobs: impl IntoIterator<Item = (usize, &'a Job)>) -> Tree {
        let mut paths: Vec<Path> = jobs
            .into_iter()
            .map(|(job, j)| Path { job, tokens: &j.tokens[..j.tokens.len() - 1], answer_from: j.answer_from })
            .collect();
        let mut tree = Tree {
            longest: paths.iter().map(|p| p.tokens.len()).max().unwrap_or(0),
            jobs: paths.iter().map(|p| (p.job, Vec::new())).collect(),
            ..Tree::default()
        };
        // Side by side, prompts that begin alike.
        let mut order: Vec<usize> = (0..paths.len()).collect();
        order.sort_by(|a, b| {
            let (a, b) = (&paths[*a], &paths[*b]);
            let first = (0..).find(|i| a.at(*i) != b.at(*i) || a.at(*i).is_none()).unwrap_or(0);
            a.at(first).cmp(&b.at(first)).then(a.job.cmp(&b.job))
        });
        let mut sorted: Vec<Option<Path>> = paths.drain(..).map(Some).collect();
        let paths: Vec<Path> = order.iter().filter_map(|i| sorted[*i].take()).collect();
        let slots: Vec<usize> = order;
        tree.roots = tree.grow(&paths, &slots, 0, &mut Vec::new());
        tree
    }

    /// Adds what `paths` (equal before `from`) have from position `from` on. `above` are the rows of the positions
    /// before. Returns the new nodes that continue there.
    fn grow(&mut self, paths: &[Path], slots: &[usize], from: usize, above: &mut Vec<usize>) -> Vec<usize> {
        let mut out = Vec::new();
        let mut i = 0;
        while i < paths.len() {
            let Some(first) = paths[i].at(from) else {
                i += 1;
                continue;
            };
            let n = paths[i..].iter().take_while(|p| p.at(from) == Some(first)).count();
            out.push(self.node(&paths[i..i + n], &slots[i..i + n], from, above));
            i += n;
        }
        out.sort_by_key(|n| self.size(*n));
        out
    }

    /// One node for `paths`, which agree on the token at `from`, and everything below it.
    fn node(&mut self, paths: &[Path], slots: &[usize], from: usize, above: &mut Vec<usize>) -> usize {
        let (first, last) = (&paths[0], &paths[paths.len() - 1]);
        let class = first.class(from);
        // Sorted: what the first and the last share, all share.
        let mut to = from;
        while first.at(to).is_some_and(|x| x.0 == class && last.at(to) == Some(x)) {
            to += 1;
        }
        let row = self.tokens.len();
        self.tokens.extend(&first.tokens[from..to]);
        above.extend(row..row + to - from);
        let me = self.nodes.len();
        self.nodes.push(Node { from, rows: row..row + to - from, class, children: Vec::new() });
        for (p, slot) in paths.iter().zip(slots).filter(|(p, _)| p.tokens.len() == to) {
            self.jobs[*slot].1 = above[p.answer_from - 1..].to_vec();
        }
        self.nodes[me].children = self.grow(paths, slots, to, above);
        above.truncate(from);
        me
    }

    /// Rows of a node and of everything below it.
    fn size(&self, node: usize) -> usize {
        let n = &self.nodes[node];
        n.rows.len() + n.children.iter().map(|c| self.size(*c)).sum::<usize>()
    }

    /// The rows of one class, as ranges in order.
    pub fn ranges(&self, want: impl Fn(Class) -> bool) -> Vec<std::ops::Range<usize>> {
        let mut out: Vec<std::ops::Range<usize>> = Vec::new();
        for n in self.nodes.iter().filter(|n| want(n.class)) {
            match out.last_mut() {
                Some(r) if r.end == n.rows.start => r.end = n.rows.end,
                _ => out.push(n.rows.clone()),
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(tokens: &[u32], answer_from: usize) -> Job {
        Job { tokens: tokens.to_vec(), answer_from, ..Job::default() }
    }

    /// Walks the tree and gives every job's tokens back.
    fn read(t: &Tree) -> Vec<(Vec<u32>, Vec<usize>)> {
        let mut at = vec![(0, 0); t.tokens.len()];
        let mut parent = vec![None; t.nodes.len()];
        for (i, n) in t.nodes.iter().enumerate() {
            for c in &n.children {
                parent[*c] = Some(i);
            }
            for r in n.rows.clone() {
                at[r] = (i, n.from + r - n.rows.start);
            }
        }
        let path = |row: usize| {
            let (mut node, position) = at[row];
            let mut tokens: Vec<u32> = t.tokens[t.nodes[node].rows.start..=row].to_vec();
            while let Some(p) = parent[node] {
                tokens.splice(0..0, t.tokens[t.nodes[p].rows.clone()].iter().copied());
                node = p;
            }
            assert_eq!(tokens.len(), position + 1, "positions follow the tokens");
            tokens
        };
        t.jobs
            .iter()
            .map(|(_, rows)| (path(*rows.last().unwrap()), rows.iter().map(|r| at[*r].1).collect()))
            .collect()
    }

    /// Catches a prompt that is cut, mixed with another one, or graded at the wrong positions.
    #[test]
    fn every_prompt_is_a_path() {
        let jobs = [
            job(&[1, 2, 3, 4, 9, 8], 4),
            job(&[1, 2, 3, 4, 9, 7, 6], 4),
            job(&[1, 2, 3, 4, 9, 8, 5, 5, 6], 7),
            job(&[1, 2, 5, 4], 3),
            job(&[1, 2, 3, 4, 9, 8], 4),
            job(&[2, 2], 1),
        ];
        let t = Tree::new(jobs.iter().enumerate());
        for ((tokens, positions), j) in read(&t).iter().zip(&jobs) {
            assert_eq!(tokens[..], j.tokens[..j.tokens.len() - 1]);
            assert_eq!(*positions, (j.answer_from - 1..j.tokens.len() - 1).collect::<Vec<_>>());
        }
        assert_eq!(t.longest, 8);
        // [1 2] [3 .. as prompt: 4 9 8 5 | 5], [3 ..]: a token asked of is not shared with a prompt's.
        assert!(t.tokens.len() < jobs.iter().map(|j| j.tokens.len() - 1).sum());
        assert!(t.nodes.iter().all(|n| !n.rows.is_empty()));
    }

    /// Catches a deep subtree that is visited before small ones: every small one would then copy a longer cache, and
    /// the walk would recurse once a branch.
    #[test]
    fn the_largest_continuation_comes_last() {
        let trunk: Vec<u32> = (0..100).collect();
        let jobs: Vec<Job> = (1..10)
            .map(|i| job(&[&trunk[..10 * i], &[200 + i as u32, 300, 301]].concat(), 10 * i + 1))
            .collect();
        let t = Tree::new(jobs.iter().enumerate());
        for n in t.nodes.iter().filter(|n| n.children.len() > 1) {
            let sizes: Vec<usize> = n.children.iter().map(|c| t.size(*c)).collect();
            assert!(sizes.is_sorted());
        }
        assert_eq!(t.tokens.len(), 90 + 9 * 2);
        assert_eq!(t.ranges(|c| c == Class::Answer).iter().map(|r| r.len()).sum::<usize>(), 9);
    }
}
