//! Prometheus' text format, in a fixed order: the recorder renders its metrics in any order, so
//! that two readings could not be compared.

use std::collections::BTreeMap;

#[derive(Default)]
struct Family<'a> {
    /// HELP and TYPE.
    head: Vec<&'a str>,
    samples: Vec<&'a str>,
}

/// Sorts metrics by name, and the samples of each by labels. The samples of one histogram keep
/// their order. Drops empty lines.
pub(super) fn sorted(text: &str) -> String {
    let mut families: BTreeMap<&str, Family<'_>> = BTreeMap::new();
    let mut name = "";
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(about) = line.strip_prefix("# ") {
            name = about.split(' ').nth(1).unwrap_or_default();
            families.entry(name).or_default().head.push(line);
        } else {
            families.entry(name).or_default().samples.push(line);
        }
    }
    let mut sorted = String::with_capacity(text.len());
    for Family { head, mut samples } in families.into_values() {
        // Without the bucket, so that the order within a histogram stays.
        samples.sort_by_cached_key(|&sample| labels_without_bucket(sample));
        for line in head.into_iter().chain(samples) {
            sorted.push_str(line);
            sorted.push('\n');
        }
    }
    sorted
}

/// The bucket is the last label.
fn labels_without_bucket(sample: &str) -> &str {
    let labels = sample.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')).map_or("", |(labels, _)| labels);
    if labels.starts_with("le=\"") {
        return "";
    }
    labels.rfind(",le=\"").map_or(labels, |at| &labels[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_and_samples_are_sorted() {
        let text = "# HELP b_seconds How long\n# TYPE b_seconds histogram\nb_seconds_bucket{pass=\"y\",le=\"1\"} 0\n\
                    b_seconds_bucket{pass=\"y\",le=\"+Inf\"} 1\nb_seconds_sum{pass=\"y\"} 2\n\
                    b_seconds_count{pass=\"y\"} 1\nb_seconds_bucket{pass=\"x\",le=\"1\"} 4\n\
                    b_seconds_bucket{pass=\"x\",le=\"+Inf\"} 4\nb_seconds_sum{pass=\"x\"} 1\n\
                    b_seconds_count{pass=\"x\"} 4\n\n# TYPE a counter\na{role=\"z\"} 1\na{role=\"y\"} 2\n\n";
        let expected = [
            "# TYPE a counter",
            "a{role=\"y\"} 2",
            "a{role=\"z\"} 1",
            "# HELP b_seconds How long",
            "# TYPE b_seconds histogram",
            "b_seconds_bucket{pass=\"x\",le=\"1\"} 4",
            "b_seconds_bucket{pass=\"x\",le=\"+Inf\"} 4",
            "b_seconds_sum{pass=\"x\"} 1",
            "b_seconds_count{pass=\"x\"} 4",
            "b_seconds_bucket{pass=\"y\",le=\"1\"} 0",
            "b_seconds_bucket{pass=\"y\",le=\"+Inf\"} 1",
            "b_seconds_sum{pass=\"y\"} 2",
            "b_seconds_count{pass=\"y\"} 1",
        ];
        assert_eq!(sorted(text).lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn samples_without_labels_stay_as_they_are() {
        let text = "# TYPE a histogram\na_bucket{le=\"1\"} 0\na_bucket{le=\"+Inf\"} 1\na_sum 2\na_count 1\n";
        assert_eq!(sorted(text), text);
    }
}
