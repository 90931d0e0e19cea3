//! Positions of the nodes of a directed graph, drawn from left to right by longest paths.
//!
//! Linear in nodes and edges, but for the order within layers. Dependencies of tasks have no
//! cycles, graphs of name prefixes may: each cycle is cut at its first node.

use std::collections::VecDeque;

/// Rows of a column. A layer with more nodes takes several columns.
const ROWS_MAX: usize = 24;
/// Passes that order each layer by the positions of required nodes.
const SWEEPS: usize = 3;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) column: usize,
    pub(super) row: usize,
}

/// Places each node right of all nodes that it requires. Edges are pairs of required and dependent
/// node.
pub(super) fn place(nodes: usize, edges: &[(usize, usize)]) -> Vec<Spot> {
    let layers = layers(nodes, edges);
    let mut members = vec![Vec::new(); layers.iter().max().map_or(0, |last| last + 1)];
    for (node, &layer) in layers.iter().enumerate() {
        members[layer].push(node);
    }
    sort(nodes, edges, &layers, &mut members);
    let (mut spots, mut first) = (vec![Spot::default(); nodes], 0);
    for layer in &members {
        let columns = layer.len().div_ceil(ROWS_MAX).max(1);
        let rows = layer.len().div_ceil(columns).max(1);
        for (index, &node) in layer.iter().enumerate() {
            spots[node] = Spot { column: first + index / rows, row: index % rows };
        }
        first += columns;
    }
    spots
}

/// Returns the length of the longest path to each node.
fn layers(nodes: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let (mut layers, mut open) = (vec![0; nodes], vec![0_usize; nodes]);
    let mut dependents = vec![Vec::new(); nodes];
    for &(required, dependent) in edges.iter().filter(|edge| is_drawn(nodes, edge)) {
        dependents[required].push(dependent);
        open[dependent] += 1;
    }
    let mut ready: VecDeque<usize> = (0..nodes).filter(|&node| open[node] == 0).collect();
    let mut placed = vec![false; nodes];
    // The first nodes that are not placed without a ready one are in cycles, or behind them.
    let mut rest = 0..nodes;
    loop {
        let Some(node) = ready.pop_front().or_else(|| rest.find(|&node| !placed[node])) else { return layers };
        if std::mem::replace(&mut placed[node], true) {
            continue;
        }
        for &dependent in &dependents[node] {
            if !placed[dependent] {
                layers[dependent] = layers[dependent].max(layers[node] + 1);
                open[dependent] -= 1;
                if open[dependent] == 0 {
                    ready.push_back(dependent);
                }
            }
        }
    }
}

/// Orders each layer by the mean position of required nodes, which avoids most crossings.
fn sort(nodes: usize, edges: &[(usize, usize)], layers: &[usize], members: &mut [Vec<usize>]) {
    let mut required = vec![Vec::new(); nodes];
    for &(from, to) in edges.iter().filter(|edge| is_drawn(nodes, edge)) {
        if layers[from] < layers[to] {
            required[to].push(from);
        }
    }
    let mut position = vec![0.0_f64; nodes];
    for _ in 0..SWEEPS {
        for layer in members.iter_mut() {
            let size = layer.len() as f64;
            let mean = |node: usize| {
                let of = &required[node];
                let sum: f64 = of.iter().map(|&node| position[node]).sum();
                if of.is_empty() { position[node] } else { sum / of.len() as f64 }
            };
            let mut keyed: Vec<(f64, usize)> = layer.iter().map(|&node| (mean(node), node)).collect();
            keyed.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            *layer = keyed.into_iter().map(|(_, node)| node).collect();
            for (index, &node) in layer.iter().enumerate() {
                position[node] = index as f64 / size;
            }
        }
    }
}

fn is_drawn(nodes: usize, &(required, dependent): &(usize, usize)) -> bool {
    required != dependent && required < nodes && dependent < nodes
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn spot(column: usize, row: usize) -> Spot {
        Spot { column, row }
    }

    fn assert_apart(spots: &[Spot]) {
        let distinct: HashSet<_> = spots.iter().map(|spot| (spot.column, spot.row)).collect();
        assert_eq!(distinct.len(), spots.len(), "{spots:?}");
    }

    #[test]
    fn node_is_right_of_all_required_nodes() {
        // The edge from 0 to 3 skips a layer.
        let edges = [(0, 1), (1, 2), (2, 3), (0, 3), (1, 4)];
        let columns: Vec<usize> = place(5, &edges).iter().map(|spot| spot.column).collect();
        assert_eq!(columns, [0, 1, 2, 3, 2]);
    }

    #[test]
    fn single_node_and_no_node_are_placed() {
        assert_eq!(place(1, &[]), [spot(0, 0)]);
        assert_eq!(place(1, &[(0, 0), (0, 7), (9, 0)]), [spot(0, 0)]);
        assert!(place(0, &[]).is_empty());
    }

    #[test]
    fn disconnected_parts_share_columns() {
        let spots = place(5, &[(0, 1), (2, 3)]);
        assert_apart(&spots);
        assert_eq!(spots.iter().map(|spot| spot.column).collect::<Vec<_>>(), [0, 1, 0, 1, 0]);
    }

    #[test]
    fn dependents_are_beside_their_required_nodes() {
        // 3 requires the last of the first layer, 4 the first one.
        let spots = place(5, &[(2, 3), (0, 4)]);
        assert_eq!((spots[4], spots[3]), (spot(1, 0), spot(1, 1)));
    }

    #[test]
    fn cycles_are_cut() {
        for edges in [&[(0, 1), (1, 0)][..], &[(0, 1), (1, 2), (2, 1), (2, 3)], &[(1, 2), (2, 1), (0, 0)]] {
            let spots = place(4, edges);
            assert_apart(&spots);
        }
        let spots = place(3, &[(0, 1), (1, 2), (2, 0)]);
        assert_eq!(spots, [spot(0, 0), spot(1, 0), spot(2, 0)]);
    }

    #[test]
    fn wide_layers_take_several_columns() {
        let edges: Vec<_> = (1..200).map(|node| (0, node)).collect();
        let spots = place(200, &edges);
        assert_apart(&spots);
        assert!(spots.iter().all(|spot| spot.row < ROWS_MAX));
        assert_eq!(spots.iter().map(|spot| spot.column).max(), Some(199_usize.div_ceil(ROWS_MAX)));
    }

    #[test]
    fn chain_of_200_nodes_has_200_columns() {
        let edges: Vec<_> = (1..200).map(|node| (node - 1, node)).collect();
        let spots = place(200, &edges);
        assert_eq!(spots[199], spot(199, 0));
        // A dense graph is as fast.
        let dense: Vec<_> = (0..200).flat_map(|to| (0..to).map(move |from| (from, to))).collect();
        assert_eq!(place(200, &dense), spots);
    }
}
