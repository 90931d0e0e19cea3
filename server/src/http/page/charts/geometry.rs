//! Coordinates of charts. For all numbers, each coordinate is finite and within the area.

/// Factors of a power of ten at the top of a scale. Their halves have few digits, too.
const TOPS: [f64; 6] = [1.0, 2.0, 4.0, 6.0, 8.0, 10.0];
/// Top of a scale for counts: its half is a whole number.
const TOP_LEAST: f64 = 2.0;
/// Half of the stroke for a value between two gaps.
const STUB: f64 = 2.0;

/// Area of the values in the view box.
#[derive(Debug, Clone, Copy)]
pub(super) struct Area {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
}

impl Area {
    /// Middle of a column.
    pub(super) fn x(&self, column: usize, columns: usize) -> f64 {
        self.left + self.width * ((column as f64 + 0.5) / columns.max(1) as f64).min(1.0)
    }

    pub(super) fn y(&self, value: f64, most: f64) -> f64 {
        let share = value / most;
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        self.top + self.height * (1.0 - share)
    }

    /// Path of a line, broken at gaps.
    pub(super) fn line(&self, values: &[Option<f64>], most: f64) -> String {
        let mut path = String::new();
        let known = |n: usize| values.get(n).copied().flatten().filter(|value| value.is_finite());
        for n in 0..values.len() {
            let Some(value) = known(n) else { continue };
            let (x, y) = (self.x(n, values.len()), self.y(value, most));
            let [begins, ends] = [n == 0 || known(n - 1).is_none(), known(n + 1).is_none()];
            if begins && ends {
                path += &format!("M{} {}h{}", short(x - STUB), short(y), short(2.0 * STUB));
            } else {
                path += &format!("{}{} {}", if begins { "M" } else { " " }, short(x), short(y));
            }
        }
        path
    }

    /// Path of the surface below a line.
    pub(super) fn surface(&self, values: &[f64], most: f64) -> String {
        let ground = short(self.top + self.height);
        let mut path = format!("M{} {ground}", short(self.x(0, values.len())));
        for (n, value) in values.iter().enumerate() {
            path += &format!(" {} {}", short(self.x(n, values.len())), short(self.y(*value, most)));
        }
        path + &format!(" {} {ground}z", short(self.x(values.len().saturating_sub(1), values.len())))
    }

    /// Path of a whole column.
    pub(super) fn column(&self, column: usize, columns: usize) -> String {
        let width = self.width / columns.max(1) as f64;
        let left = self.left + width * column as f64;
        format!("M{} {}h{}v{}H{0}z", short(left), short(self.top), short(width), short(self.height))
    }
}

/// Returns a number at or above `most` for the top of a scale of counts.
pub(super) fn scale_top(most: f64) -> f64 {
    if !most.is_finite() || most <= TOP_LEAST {
        return TOP_LEAST;
    }
    let power = 10_f64.powf(most.log10().floor());
    TOPS.into_iter().map(|factor| factor * power).find(|top| *top >= most).unwrap_or(most)
}

/// Adds to each series those before it.
pub(super) fn stack(series: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut sums: Vec<Vec<f64>> = Vec::with_capacity(series.len());
    for values in series {
        let below = sums.last();
        let sum = |(n, value): (usize, &f64)| value + below.and_then(|below| below.get(n)).copied().unwrap_or(0.0);
        let summed = values.iter().enumerate().map(sum).collect();
        sums.push(summed);
    }
    sums
}

/// With one decimal, if it has any.
pub(super) fn short(number: f64) -> String {
    let text = format!("{number:.1}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AREA: Area = Area { left: 0.0, top: 10.0, width: 100.0, height: 50.0 };

    /// Absolute coordinates of a path that only has such.
    fn numbers(path: &str) -> Vec<f64> {
        let parts = path.split(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-'));
        parts.filter(|part| !part.is_empty()).map(|part| part.parse().unwrap()).collect()
    }

    #[test]
    fn coordinates_stay_finite_and_within_area() {
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e300, f64::MIN_POSITIVE];
        for most in odd {
            for value in odd {
                let y = AREA.y(value, most);
                assert!((10.0..=60.0).contains(&y), "{value} of {most}: {y}");
            }
            let top = scale_top(most);
            assert!(top.is_finite() && top > 0.0 && (top >= most || !most.is_finite()), "{most}: {top}");
        }
        for (column, columns) in [(0, 0), (0, 1), (59, 60), (60, 60)] {
            assert!((0.0..=100.0).contains(&AREA.x(column, columns)), "{column} of {columns}");
        }
        let path = AREA.surface(&odd, 1.0) + &AREA.line(&odd.map(Some), 1.0);
        assert!(!path.contains("NaN") && !path.contains("inf"), "{path}");
    }

    #[test]
    fn line_is_broken_at_gaps() {
        let values = [Some(0.0), Some(1.0), None, Some(0.5), None, Some(1.0)];
        assert_eq!(AREA.line(&values, 1.0), "M8.3 60 25 10M56.3 35h4M89.7 10h4");
        assert_eq!(AREA.line(&[None, None], 1.0), "");
        assert_eq!(AREA.line(&[], 1.0), "");
        assert_eq!(AREA.line(&[Some(1.0)], 1.0), "M48 10h4");
        assert_eq!(AREA.line(&[None, Some(f64::NAN)], 1.0), "");
    }

    #[test]
    fn zeros_lie_on_the_ground() {
        assert_eq!(AREA.line(&[Some(0.0); 2], scale_top(0.0)), "M25 60 75 60");
        assert_eq!(AREA.surface(&[0.0, 0.0], scale_top(0.0)), "M25 60 25 60 75 60 75 60z");
        assert!(numbers(&AREA.surface(&[], 1.0)).iter().all(|number| number.is_finite()));
    }

    #[test]
    fn scale_ends_at_round_number() {
        let tops = [0.0, 1.0, 2.0, 3.0, 5.0, 7.0, 9.0, 10.0, 11.0, 41.0, 81.0, 1_078.0].map(scale_top);
        assert_eq!(tops, [2.0, 2.0, 2.0, 4.0, 6.0, 8.0, 10.0, 10.0, 20.0, 60.0, 100.0, 2_000.0]);
    }

    #[test]
    fn stacked_series_add_up() {
        assert_eq!(stack(&[vec![1.0, 2.0], vec![3.0, 4.0], vec![5.0]]), [vec![1.0, 2.0], vec![4.0, 6.0], vec![9.0]]);
        assert!(stack(&[]).is_empty());
    }

    #[test]
    fn columns_fill_the_area() {
        assert_eq!(AREA.column(0, 4), "M0 10h25v50H0z");
        assert_eq!(AREA.column(3, 4), "M75 10h25v50H75z");
        assert_eq!(AREA.column(0, 0), "M0 10h100v50H0z");
    }
}
