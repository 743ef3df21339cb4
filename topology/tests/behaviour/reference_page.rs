//! The example of the file format's reference page is a topology.

use ratewright_topology::{Node, Topology};

#[test]
fn the_example_of_the_reference_page_parses() {
    let page = include_str!("../../../docs/topology-file.md");
    // The page's first block of TOML is the complete example.
    let (_, rest) = page.split_once("```toml\n").expect("an example");
    let (example, _) = rest.split_once("```").expect("its end");
    let topology = Topology::from_toml_str(example, "docs/topology-file.md").expect("valid");
    assert_eq!(topology.hosts()[0].name, "db1");
    assert_eq!(topology.hosts()[2].name, "web1");
    let narrowed = topology
        .links()
        .iter()
        .filter(|link| {
            link.line_rate_bps == 10_000_000_000
                && matches!((link.from, link.to), (Node::Switch(_), Node::Switch(_)))
        })
        .count();
    assert_eq!(narrowed, 2, "both directions of leaf1 and spine2");
}
