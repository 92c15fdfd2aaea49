//! BLEU and ROUGE of an answer and its reference, as LLaMA-Factory computes them: words of jieba,
//! rouge_chinese's F scores, and nltk's sentence_bleu of characters with smoothing method 3.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::LazyLock;

use jieba_rs::Jieba;
use regex::Regex;

use crate::python::is_space;
use crate::{guard, Owned, View};

static JIEBA: LazyLock<Jieba> = LazyLock::new(Jieba::new);
/// Runs of Latin characters become these words, and the text between them.
static LATIN: LazyLock<Regex> = LazyLock::new(|| regex(r"[a-zA-Z0-9]+(?:\.[0-9]+)?%?"));
/// A line ends after the first group of each, one after the other.
static SENTENCE_ENDS: LazyLock<[Regex; 4]> = LazyLock::new(|| {
    [
        regex(r"([。！？?])([^”’])"),
        regex(r"(\.{6})([^”’])"),
        regex(r"(…{2})([^”’])"),
        regex(r"([。！？?][”’])([^，。！？?])"),
    ]
});

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).unwrap()
}

/// A character of Python's jieba that may be part of a longer word. The crate takes more.
fn is_in_words(c: char) -> bool {
    matches!(c, '\u{4E00}'..='\u{9FD5}' | 'a'..='z' | 'A'..='Z' | '0'..='9')
        || "+#&._%-".contains(c)
}

/// The words of `jieba.cut`. The crate joins Latin words at '.', '_' and '-'; Python's does not.
fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = if is_in_words(c) {
            rest.find(|c| !is_in_words(c)).unwrap_or(rest.len())
        } else if rest.starts_with("\r\n") {
            2
        } else {
            c.len_utf8()
        };
        let (block, after) = rest.split_at(length);
        rest = after;
        if !is_in_words(c) {
            words.push(block);
            continue;
        }
        for token in JIEBA.cut(block, true) {
            if !token.word.is_ascii() || JIEBA.has_word(token.word) {
                words.push(token.word);
                continue;
            }
            let mut place = 0;
            for found in LATIN.find_iter(token.word) {
                words.extend(Some(&token.word[place..found.start()]).filter(|gap| !gap.is_empty()));
                words.push(found.as_str());
                place = found.end();
            }
            words.extend(Some(&token.word[place..]).filter(|gap| !gap.is_empty()));
        }
    }
    words
}

/// The words of all sentences that rouge_chinese finds. A blank sentence is an empty word.
fn words_of_sentences(words: &[&str]) -> Vec<String> {
    let mut text = words.join(" ");
    for end in SENTENCE_ENDS.iter() {
        text = end.replace_all(&text, "${1}\n${2}").into_owned();
    }
    let mut found = Vec::new();
    for sentence in text.trim_end_matches(is_space).split('\n').filter(|one| !one.is_empty()) {
        let before = found.len();
        found.extend(sentence.split(is_space).filter(|one| !one.is_empty()).map(String::from));
        if found.len() == before {
            found.push(String::new());
        }
    }
    found
}

fn f_score(overlap: usize, answer: usize, reference: usize) -> f64 {
    let share = |all: usize| if all == 0 { 0.0 } else { overlap as f64 / all as f64 };
    let (precision, recall) = (share(answer), share(reference));
    2.0 * ((precision * recall) / (precision + recall + 1e-8))
}

fn rouge_n(answer: &[String], reference: &[String], n: usize) -> f64 {
    let answer: HashSet<_> = answer.windows(n).collect();
    let reference: HashSet<_> = reference.windows(n).collect();
    f_score(answer.intersection(&reference).count(), answer.len(), reference.len())
}

/// By the longest common subsequence.
fn rouge_l(answer: &[String], reference: &[String]) -> f64 {
    let mut before = vec![0; answer.len() + 1];
    for word in reference {
        let mut row = vec![0; answer.len() + 1];
        for (j, other) in answer.iter().enumerate() {
            row[j + 1] = if word == other { before[j] + 1 } else { row[j].max(before[j + 1]) };
        }
        before = row;
    }
    f_score(before[answer.len()], answer.len(), reference.len())
}

fn counts<T: Eq + Hash>(text: &[T], n: usize) -> HashMap<&[T], usize> {
    let mut counts = HashMap::new();
    for part in text.windows(n) {
        *counts.entry(part).or_insert(0) += 1;
    }
    counts
}

/// The sum as Python's math.fsum: without rounding between terms.
fn exact_sum(terms: &[f64]) -> f64 {
    let mut partials: Vec<f64> = Vec::new();
    for &term in terms {
        let mut x = term;
        let mut kept = Vec::new();
        for mut y in partials {
            if x.abs() < y.abs() {
                (x, y) = (y, x);
            }
            let high = x + y;
            let low = y - (high - x);
            if low != 0.0 {
                kept.push(low);
            }
            x = high;
        }
        kept.push(x);
        partials = kept;
    }
    // The partials do not overlap, the largest last.
    partials.iter().rev().fold(0.0, |sum, part| sum + part)
}

fn bleu_4(answer: &[char], reference: &[char]) -> f64 {
    let mut logarithms = Vec::new();
    let mut without_match = 0;
    for n in 1..=4 {
        let (own, others) = (counts(answer, n), counts(reference, n));
        let clipped = |(part, &count): (&&[char], &usize)| {
            count.min(others.get(*part).copied().unwrap_or(0))
        };
        let matches: usize = own.iter().map(clipped).sum();
        let all = own.values().sum::<usize>().max(1) as f64;
        if matches == 0 {
            if n == 1 {
                return 0.0;
            }
            without_match += 1;
            logarithms.push(0.25 * (1.0 / (2f64.powi(without_match) * all)).ln());
        } else {
            logarithms.push(0.25 * (matches as f64 / all).ln());
        }
    }
    let penalty = if answer.len() > reference.len() {
        1.0
    } else {
        (1.0 - reference.len() as f64 / answer.len() as f64).exp()
    };
    penalty * exact_sum(&logarithms).exp()
}

/// In percent, rounded to four decimals as Python rounds.
fn percent(score: f64) -> f64 {
    format!("{:.4}", score * 100.0).parse().unwrap()
}

/// ROUGE-1, ROUGE-2, ROUGE-L, BLEU-4.
fn similarity(answer: &str, reference: &str) -> [f64; 4] {
    let is_blank = |words: &[&str]| words.iter().all(|word| word.chars().all(is_space));
    let characters = |text: &str| text.chars().collect::<Vec<char>>();
    let bleu = bleu_4(&characters(answer), &characters(reference));
    let (answer, reference) = (words(answer), words(reference));
    let mut scores = [0.0, 0.0, 0.0, percent(bleu)];
    if !is_blank(&answer) && !is_blank(&reference) {
        let (answer, reference) = (words_of_sentences(&answer), words_of_sentences(&reference));
        scores[0] = percent(rouge_n(&answer, &reference, 1));
        scores[1] = percent(rouge_n(&answer, &reference, 2));
        scores[2] = percent(rouge_l(&answer, &reference));
    }
    scores
}

/// Fills `scores` [4].
#[no_mangle]
pub unsafe extern "C" fn lsr_similarity(
    answer: View,
    reference: View,
    scores: *mut f64,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        for (i, score) in similarity(&answer.text(), &reference.text()).into_iter().enumerate() {
            scores.add(i).write(score);
        }
        Ok(())
    })
}
