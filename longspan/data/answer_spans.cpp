#include "longspan/data/answer_spans.h"

#include <algorithm>
#include <string>
#include <string_view>

namespace longspan {

namespace {

/// An answer up to the token that stops generation, and the text after it.
struct Ending {
  AnswerTokens answer;
  bool stops;
  size_t rest, limit;  // bytes of the text after it, up to the next message's text
};

/// Returns the first token from `at` on that does not end by byte `end`.
size_t tokens_up_to(const EncodedText& tokens, size_t at, size_t end) {
  while (at < tokens.ids.size() && tokens.end[at] <= end) ++at;
  return at;
}

/// `begin`: the answer's first byte.
Ending ending_of(const LocatedChat& chat, const EncodedText& tokens, size_t message, size_t begin,
                 const std::vector<AnswerTokens>& before, const std::set<int32_t>& ends) {
  const size_t texts_end = chat.place_of(message) ? chat.place_of(message)->end : begin;
  Ending ending{.answer = answer_tokens(tokens, before, begin, texts_end),
                .stops = false,
                .rest = texts_end,
                .limit = chat.surroundings_of(message).end};
  for (size_t i = ending.answer.end; i < tokens.ids.size() && tokens.end[i] <= ending.limit; ++i) {
    if (!ends.contains(tokens.ids[i])) continue;
    ending.answer.end = i + 1;
    ending.stops = true;
    ending.rest = tokens.end[i];
    return ending;
  }
  return ending;
}

bool is_space(std::string_view text, const EncodedText& tokens, size_t token) {
  const size_t begin = tokens.begin[token];
  return stripped(text.substr(begin, tokens.end[token] - begin)).empty();
}

}  // namespace

AnswerTokens answer_tokens(const EncodedText& tokens, const std::vector<AnswerTokens>& before,
                           size_t begin, size_t end) {
  AnswerTokens span{};
  span.begin = tokens_up_to(tokens, before.empty() ? 0 : before.back().end, begin);
  span.end = span.begin;
  while (span.end < tokens.ids.size() && tokens.begin[span.end] < end) ++span.end;
  return span;
}

std::vector<AnswerTokens> answer_spans(const LocatedChat& chat, const EncodedText& tokens,
                                       const std::vector<size_t>& answers,
                                       const std::set<int32_t>& ends) {
  std::vector<AnswerTokens> spans;
  std::vector<Ending> endings;
  std::vector<size_t> without_stop;
  const std::vector<size_t> begins = chat.begins_of_answers(answers);
  for (size_t i = 0; i < answers.size(); ++i) {
    endings.push_back(ending_of(chat, tokens, answers[i], begins[i], spans, ends));
    spans.push_back(endings.back().answer);
    if (!endings.back().stops) without_stop.push_back(answers[i]);
  }
  const std::vector<std::string> alone = chat.endings_alone(without_stop);
  size_t num_alone = 0;
  const std::string_view text = chat.text();
  const auto common = [](std::string_view a, std::string_view b) {
    return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  };
  const auto rest_of = [&](const Ending& ending) {
    return text.substr(ending.rest, ending.limit - ending.rest);
  };
  for (size_t i = 0; i < spans.size(); ++i) {
    const Ending &ending = endings[i], &last = endings.back();
    size_t& end = spans[i].end;
    if (!ending.stops) {
      const size_t same = common(rest_of(ending), alone[num_alone++]);
      end = std::max(end, tokens_up_to(tokens, end, ending.rest + same));
    } else if (last.stops) {
      const size_t most =
          tokens_up_to(tokens, end, ending.rest + common(rest_of(ending), rest_of(last)));
      while (end < most && is_space(text, tokens, end)) ++end;
    }
  }
  // Two answers may have no message's text between them.
  for (size_t i = 1; i < spans.size(); ++i) {
    spans[i - 1].end = std::min(spans[i - 1].end, spans[i].begin);
  }
  return spans;
}

size_t answer_at(const LocatedChat& chat, const std::vector<size_t>& answers,
                 const EncodedText& tokens, const AnswerTokens& span) {
  const size_t end = span.end == 0 ? 0 : tokens.end[span.end - 1];
  size_t at = answers.front();
  for (const size_t answer : answers) {
    if (chat.place_of(answer) && chat.place_of(answer)->begin < end) at = answer;
  }
  return at;
}

}  // namespace longspan
