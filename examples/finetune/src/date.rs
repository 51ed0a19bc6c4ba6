//! Dates in chat templates.

use anyhow::{Context, Result, bail};
use chrono::{DateTime, Local, NaiveDateTime};

/// Seconds since 1970 to use as the date of today, as in reproducible builds.
const EPOCH: &str = "SOURCE_DATE_EPOCH";

/// Fields that Python and `chrono` write in the same way.
const FIELDS: &str = "aAbBcdDeFgGhHIjmMnpRStTuUVwWxXyY%";

/// The fields that are numbers.
const NUMBERS: &str = "deGgHIjmMSuUVwWyY";

/// Returns the local time in a `format` of Python's `strftime`.
pub fn now(format: &str) -> Result<String> {
    let seconds = std::env::var(EPOCH).ok();
    written(time(seconds.as_deref())?, format)
}

/// Returns the time of `seconds` since 1970, or the local time.
fn time(seconds: Option<&str>) -> Result<NaiveDateTime> {
    let Some(seconds) = seconds else {
        return Ok(Local::now().naive_local());
    };
    let parsed = seconds.parse().ok();
    let time = parsed.and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    let time = time.with_context(|| {
        format!("`{EPOCH}` is {seconds}: it must be a number of seconds since 1970")
    })?;
    Ok(time.naive_utc())
}

fn written(time: NaiveDateTime, format: &str) -> Result<String> {
    let mut rest = format.chars();
    while let Some(character) = rest.next() {
        if character != '%' {
            continue;
        }
        // `%-d` is a number without padding.
        let (field, fields) = match rest.next() {
            Some('-') => (rest.next(), NUMBERS),
            field => (field, FIELDS),
        };
        if !field.is_some_and(|field| fields.contains(field)) {
            bail!(
                "`strftime_now` has the format {format}: this program writes the fields {FIELDS}, and those of {NUMBERS} after `-`"
            );
        }
    }
    Ok(time.format(format).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected texts are those of Python 3 for `datetime(2026, 1, 5, 7, 8, 9)`.
    #[test]
    fn date_formats_equal_those_of_python() {
        let time = time(Some("1767596889")).unwrap();
        for (format, expected) in [
            ("%d %b %Y", "05 Jan 2026"),
            ("%Y-%m-%d", "2026-01-05"),
            ("%B %-d, %Y", "January 5, 2026"),
            ("%A, %H:%M:%S", "Monday, 07:08:09"),
            ("%a %e %h %y", "Mon  5 Jan 26"),
            ("%I:%M %p", "07:08 AM"),
            ("%j %U %W %V %G %g %u %w", "005 01 01 02 2026 26 1 1"),
            ("%c", "Mon Jan  5 07:08:09 2026"),
            ("%x %X", "01/05/26 07:08:09"),
            ("%D %F %T %R", "01/05/26 2026-01-05 07:08:09 07:08"),
            ("100%%", "100%"),
            ("%-m/%-d %-H %-I %-M %-S %-j", "1/5 7 7 8 9 5"),
        ] {
            assert_eq!(written(time, format).unwrap(), expected, "{format}");
        }
        for format in ["%f", "%", "%Q", "%-B"] {
            let error = written(time, format).unwrap_err().to_string();
            assert!(error.contains("this program writes the fields"), "{error}");
        }
    }

    #[test]
    fn date_of_text_without_number_is_refused() {
        let error = time(Some("today")).unwrap_err().to_string();
        assert!(error.contains("`SOURCE_DATE_EPOCH` is today"), "{error}");
    }
}
