//! Which area a user means: by its number, or by the text of `swapon`, which may have a password that the list does not show.

use foreswap::ledger::AREA_NAME_BYTES;

use super::words::Area;
use crate::areas;

/// What the list of areas says for the text of an area: no password, and no more than the ledger keeps.
fn as_listed(text: &str) -> String {
    let mut whole = areas::without_password(text);
    whole.truncate(whole.floor_char_boundary(AREA_NAME_BYTES));
    whole
}

/// The requested area: by its number, its path, or none if there is one only.
pub fn find(there: &[Area], wanted: Option<&[String; 2]>) -> Result<Area, String> {
    let listed = || -> String {
        let each = there.iter().map(|a| format!("{} ({})", a.number, a.path));
        each.collect::<Vec<_>>().join(", ")
    };
    let Some([typed, absolute]) = wanted else {
        return match there {
            [] => Err("this run has no swap area".to_owned()),
            [only] => Ok(only.clone()),
            _ => Err(format!(
                "this run has several swap areas: {}; name one of them",
                listed()
            )),
        };
    };
    let number = |area: &&Area| area.number.to_string() == *typed;
    if let Some(area) = there.iter().find(number) {
        return Ok(area.clone());
    }
    // A password that was typed is in no message either.
    let [typed, absolute] = [typed, absolute].map(|text| as_listed(text));
    let path = |area: &&Area| area.path == typed || area.path == absolute;
    let same: Vec<&Area> = there.iter().filter(path).collect();
    match same[..] {
        [one] => Ok(one.clone()),
        [] => Err(format!(
            "this run has no swap area {typed}; it has {}",
            if there.is_empty() {
                "none".to_owned()
            } else {
                listed()
            }
        )),
        _ => Err(format!(
            "{typed} is the path of several swap areas: {}; name one by its number",
            listed()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(number: u8, path: &str) -> Area {
        Area {
            number,
            path: path.to_owned(),
            bytes: 1 << 20,
            used_bytes: 0,
            memory: None,
            priority: 0,
            state: "usable".to_owned(),
            encrypted: false,
        }
    }

    #[test]
    fn an_area_is_named_by_number_or_path_or_not_at_all() {
        let there = [area(0, "/tmp"), area(1, "/swap"), area(4, "/tmp")];
        let named = |typed: &str, absolute: &str| {
            let wanted = [typed.to_owned(), absolute.to_owned()];
            find(&there, Some(&wanted)).map(|area| area.number)
        };
        assert_eq!(named("4", "/work/4"), Ok(4));
        assert_eq!(named("swap", "/swap"), Ok(1));
        let error = named("/tmp", "/tmp").expect_err("two of them");
        assert!(
            error.contains("0 (/tmp)") && error.contains("by its number"),
            "{error}"
        );
        let error = named("7", "/work/7").expect_err("no such area");
        assert!(error.contains("1 (/swap)"), "{error}");
        assert!(find(&there, None).is_err());
        assert_eq!(find(&there[..1], None).map(|area| area.number), Ok(0));
        assert!(find(&[], None).is_err());
    }

    #[test]
    fn an_area_with_a_password_is_named_with_it_and_without() {
        let long = format!("redis+unix:///?socket=/{}", "s".repeat(AREA_NAME_BYTES));
        let mirror = "redis://me:***@a+nbd://b/x";
        let there = [
            area(0, "redis://:***@h:7"),
            area(1, mirror),
            area(2, &long[..AREA_NAME_BYTES]),
        ];
        let named = |there: &[Area], typed: &str| {
            let wanted = [typed.to_owned(), format!("/work/{typed}")];
            find(there, Some(&wanted)).map(|area| area.number)
        };
        for (typed, number) in [
            ("redis://:secret@h:7", 0),
            ("redis://:***@h:7", 0),
            ("redis://me:secret@a+nbd://b/x", 1),
            (mirror, 1),
            (&long, 2),
        ] {
            assert_eq!(named(&there, typed), Ok(number), "{typed}");
        }
        let twice = [area(0, "redis://:***@h:7"), area(1, "redis://:***@h:7")];
        for (there, typed) in [
            (&there[..], "redis://:secret@h:8"),
            (&twice, "redis://:secret@h:7"),
        ] {
            let error = named(there, typed).expect_err(typed);
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
