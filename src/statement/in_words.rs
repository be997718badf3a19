//! Writes amounts in Russian words, in the form that invoices require: «Одна тысяча рублей 50 копеек».

/// The numbers from 1 to 19.
const UNITS: &str = "один два три четыре пять шесть семь восемь девять десять одиннадцать двенадцать тринадцать \
    четырнадцать пятнадцать шестнадцать семнадцать восемнадцать девятнадцать";
/// The tens from 20 to 90.
const TENS: &str = "двадцать тридцать сорок пятьдесят шестьдесят семьдесят восемьдесят девяносто";
/// The hundreds from 100 to 900.
const HUNDREDS: &str = "сто двести триста четыреста пятьсот шестьсот семьсот восемьсот девятьсот";

/// The Russian forms of a noun after the numbers 1, 2 to 4, and 5.
type Forms = [&'static str; 3];

/// The names of powers of a thousand, the largest first. The forms for 10⁰ are those of the ruble.
const POWERS: [(u64, Forms); 5] = [
    (1_000_000_000_000, ["триллион", "триллиона", "триллионов"]),
    (1_000_000_000, ["миллиард", "миллиарда", "миллиардов"]),
    (1_000_000, ["миллион", "миллиона", "миллионов"]),
    (THOUSAND, ["тысяча", "тысячи", "тысяч"]),
    (1, RUBLES),
];
const THOUSAND: u64 = 1000;
const RUBLES: Forms = ["рубль", "рубля", "рублей"];
const KOPECKS: Forms = ["копейка", "копейки", "копеек"];

/// Returns an amount below 10¹⁵ rubles: the rubles in words, the kopecks in two digits.
pub(super) fn in_words(kopecks: u64) -> String {
    let (rubles, rest) = (kopecks / 100, kopecks % 100);
    let mut words = Vec::new();
    if rubles == 0 {
        words.push("ноль");
    }
    for (power, forms) in POWERS {
        let count = rubles / power % 1000;
        hundreds(count, power == THOUSAND, &mut words);
        if count > 0 || power == 1 {
            words.push(form(count, forms));
        }
    }
    let text = words.join(" ");
    let mut chars = text.chars();
    let first = chars.next().into_iter();
    let capital: String = first.flat_map(char::to_uppercase).collect();
    let (words, unit) = (chars.as_str(), form(rest, KOPECKS));
    format!("{capital}{words} {rest:02} {unit}")
}

/// Appends the words for a number below 1000. Thousands are feminine in Russian, so they need other forms of 1 and 2.
fn hundreds(count: u64, feminine: bool, words: &mut Vec<&'static str>) {
    // Words are counted from 1. For zero there is no word.
    let word = |words: &'static str, place: u64| {
        let index = usize::try_from(place.checked_sub(1)?).ok()?;
        words.split(' ').nth(index)
    };
    let below_hundred = count % 100;
    let (tens, units) = match below_hundred {
        0..20 => (0, below_hundred),
        _ => (below_hundred / 10, below_hundred % 10),
    };
    let unit = match (units, feminine) {
        (1, true) => Some("одна"),
        (2, true) => Some("две"),
        _ => word(UNITS, units),
    };
    let tens = word(TENS, tens.saturating_sub(1));
    words.extend(
        [word(HUNDREDS, count / 100), tens, unit]
            .into_iter()
            .flatten(),
    );
}

const fn form(count: u64, [one, few, many]: Forms) -> &'static str {
    match (count % 100, count % 10) {
        (11..=14, _) => many,
        (_, 1) => one,
        (_, 2..=4) => few,
        _ => many,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_written_in_russian_words() {
        for (rubles, kopecks, words) in [
            (0, 0, "Ноль рублей 00 копеек"),
            (0, 1, "Ноль рублей 01 копейка"),
            (0, 2, "Ноль рублей 02 копейки"),
            (0, 11, "Ноль рублей 11 копеек"),
            (0, 21, "Ноль рублей 21 копейка"),
            (1, 0, "Один рубль 00 копеек"),
            (2, 0, "Два рубля 00 копеек"),
            (5, 5, "Пять рублей 05 копеек"),
            (11, 0, "Одиннадцать рублей 00 копеек"),
            (14, 0, "Четырнадцать рублей 00 копеек"),
            (21, 99, "Двадцать один рубль 99 копеек"),
            (40, 0, "Сорок рублей 00 копеек"),
            (90, 0, "Девяносто рублей 00 копеек"),
            (111, 0, "Сто одиннадцать рублей 00 копеек"),
            (122, 0, "Сто двадцать два рубля 00 копеек"),
            (1000, 0, "Одна тысяча рублей 00 копеек"),
            (1000, 50, "Одна тысяча рублей 50 копеек"),
            (2001, 0, "Две тысячи один рубль 00 копеек"),
            (5012, 0, "Пять тысяч двенадцать рублей 00 копеек"),
            (11011, 0, "Одиннадцать тысяч одиннадцать рублей 00 копеек"),
            (21001, 0, "Двадцать одна тысяча один рубль 00 копеек"),
            (
                342719,
                34,
                "Триста сорок две тысячи семьсот девятнадцать рублей 34 копейки",
            ),
            (1000000, 0, "Один миллион рублей 00 копеек"),
            (2000003, 0, "Два миллиона три рубля 00 копеек"),
            (
                9007199254,
                74,
                "Девять миллиардов семь миллионов сто девяносто девять тысяч двести пятьдесят четыре рубля 74 копейки",
            ),
        ] {
            assert_eq!(in_words(rubles * 100 + kopecks), words);
        }
    }
}
