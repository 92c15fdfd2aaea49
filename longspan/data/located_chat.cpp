#include "longspan/data/located_chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "longspan/data/bad_rows.h"
#include "longspan/data/template_format.h"
#include "longspan/text/shown.h"

namespace longspan {

namespace {

using nlohmann::ordered_json;

constexpr size_t kShownBytes = 60;

bool is_answer(const ordered_json& message) { return message.at("role") == "assistant"; }

std::string content_of(const ordered_json& message) {
  const auto content = message.find("content");
  return content == message.end() || !content->is_string() ? "" : content->get<std::string>();
}

/// Whether a text is printed unchanged, or as in JSON (a tool's output).
bool is_written(const std::string& text, const std::string& there) {
  if (there == text) return true;
  for (const bool only_ascii : {false, true}) {
    const std::string quoted = ordered_json(text).dump(-1, ' ', only_ascii);
    if (quoted.compare(1, quoted.size() - 2, there) == 0) return true;
  }
  return false;
}

size_t common_prefix(std::string_view a, std::string_view b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

/// Messages at the end of a prefix that leaves out messages in the middle.
constexpr size_t kLastMessages = 8;
/// Results by short prefixes that are compared because the text before the answer is new.
constexpr size_t kMostNewTexts = 32;

}  // namespace

LocatedChat::LocatedChat(RenderMessages render, const ordered_json& messages,
                         bool generation_prompt, const std::string& place)
    : render_(std::move(render)),
      messages_(messages),
      generation_prompt_(generation_prompt),
      source_(place),
      plain_(render_(messages_, generation_prompt)),
      marks_of_(messages.size()),
      places_(messages.size()),
      lost_thoughts_(messages.size()) {
  mark_most();
  find_marked_texts();
  search_for_texts();
  require_order();
  find_neighbours();
}

bool LocatedChat::mark(const std::vector<bool>& marked) {
  marks_.clear();
  marked_.emplace(messages_, marked, plain_.text);
  is_marked_ = marked;
  try {
    const RenderedChat rendered = render_(marked_->messages(), generation_prompt_);
    return marked_->without_marks(rendered.text, marks_) == plain_.text;
  } catch (const RowError&) {
    return false;  // the template compares a text
  }
}

void LocatedChat::mark_most() {
  const size_t size = messages_.size();
  if (mark(std::vector<bool>(size, true))) return;
  // Tries halves of the messages, and halves of those that take no marks. That needs few renderings
  // where few messages take no marks.
  std::vector<bool> takes_marks(size, true);
  std::vector<Place> left = {{0, size / 2}, {size / 2, size}};
  while (!left.empty()) {
    const Place part = left.back();
    left.pop_back();
    if (part.begin == part.end) continue;
    std::vector<bool> marked(size);
    std::fill(marked.begin() + part.begin, marked.begin() + part.end, true);
    if (mark(marked)) continue;
    if (part.end - part.begin == 1) {
      takes_marks[part.begin] = false;
      continue;
    }
    const size_t middle = (part.begin + part.end) / 2;
    left.push_back({part.begin, middle});
    left.push_back({middle, part.end});
  }
  if (!mark(takes_marks) && !mark(std::vector<bool>(size))) {
    fail("it renders the same messages differently each time");
  }
}

void LocatedChat::find_marked_texts() {
  const std::vector<ChatText>& texts = marked_->texts();
  std::vector<std::vector<size_t>> begins(texts.size()), ends(texts.size());
  for (size_t i = 0; i < marks_.size(); ++i) {
    const MarkPlace& mark = marks_[i];
    marks_of_[texts[mark.text].message].push_back(i);
    std::vector<size_t>& bytes = (mark.is_end ? ends : begins)[mark.text];
    bytes.push_back(mark.byte);
    // A tool's result may repeat the call's name.
    if (texts[mark.text].kind == ChatText::kName && bytes.size() > 1) continue;
    std::optional<Place>& place = places_[texts[mark.text].message];
    if (!place) place = Place{mark.byte, mark.byte};
    place->begin = std::min(place->begin, mark.byte);
    place->end = std::max(place->end, mark.byte);
  }
  for (size_t k = 0; k < texts.size(); ++k) {
    const ChatText& text = texts[k];
    const bool printed =
        !begins[k].empty() && !ends[k].empty() && begins[k].front() <= ends[k].front() &&
        is_written(text.text,
                   plain_.text.substr(begins[k].front(), ends[k].front() - begins[k].front()));
    if (text.kind == ChatText::kThoughts) {
      if (!printed) lost_thoughts_[text.message] = true;
    } else if (text.kind == ChatText::kContent && !printed) {
      fail(fmt::format("the text of {} is not in what it prints (\"{}\")",
                       name_of_message(text.message), shortened(text.text, kShownBytes)));
    } else if (text.kind == ChatText::kContent && is_answer(messages_[text.message]) &&
               begins[k].size() > 1) {
      fail(fmt::format("it prints {} twice", name_of_message(text.message)));
    }
  }
}

void LocatedChat::search_for_texts() {
  size_t from = 0;
  for (size_t i = 0; i < messages_.size(); ++i) {
    if (places_[i]) from = std::max(from, places_[i]->end);
    if (is_marked_[i]) continue;
    const std::string content = content_of(messages_[i]);
    const size_t thoughts_end =
        is_answer(messages_[i]) ? content.rfind(kThoughtsEnd) : std::string::npos;
    const bool thinks = thoughts_end != std::string::npos;
    const std::string_view text =
        stripped(std::string_view(content).substr(thinks ? thoughts_end + kThoughtsEnd.size() : 0));
    const std::string_view thoughts =
        thinks ? stripped(std::string_view(content).substr(0, thoughts_end)) : std::string_view();
    if (thinks && plain_.text.find(thoughts, from) == std::string::npos) lost_thoughts_[i] = true;
    if (const auto own = messages_[i].find("reasoning_content"); own != messages_[i].end()) {
      const auto thought = own->get<std::string>();
      if (plain_.text.find(stripped(thought), from) == std::string::npos) lost_thoughts_[i] = true;
    }
    if (text.empty()) {
      search_for_parts(i, from);
      continue;
    }
    size_t at = plain_.text.find(text, from);
    // A system message may be printed after other messages.
    if (at == std::string::npos && !is_answer(messages_[i])) at = plain_.text.find(text);
    if (at == std::string::npos) {
      fail(fmt::format("the text of {} is not in what it prints (\"{}\")", name_of_message(i),
                       shortened(std::string(text), kShownBytes)));
    }
    places_[i] = Place{at, at + text.size()};
    from = std::max(from, places_[i]->end);
  }
}

void LocatedChat::search_for_parts(size_t message, size_t& from) {
  const auto content = messages_[message].find("content");
  if (content == messages_[message].end() || !content->is_array()) return;
  for (const ordered_json& part : *content) {
    if (!part.contains("text")) continue;
    const auto whole = part.at("text").get<std::string>();
    const std::string_view text = stripped(whole);
    if (text.empty()) continue;
    const size_t at = plain_.text.find(text, from);
    if (at == std::string::npos) {
      fail(fmt::format("the text of {} is not in what it prints (\"{}\")", name_of_message(message),
                       shortened(std::string(text), kShownBytes)));
    }
    std::optional<Place>& place = places_[message];
    place = Place{place ? place->begin : at, at + text.size()};
    from = place->end;
  }
}

void LocatedChat::require_order() const {
  size_t end = 0;
  for (size_t i = 0; i < messages_.size(); ++i) {
    if (!is_answer(messages_[i]) || !places_[i]) continue;
    if (places_[i]->begin < end) fail(fmt::format("it prints {} too early", name_of_message(i)));
    end = places_[i]->end;
  }
}

void LocatedChat::find_neighbours() {
  std::vector<Place> found(messages_.size(), Place{0, plain_.text.size()});
  size_t end = 0;
  for (size_t i = 0; i < messages_.size(); ++i) {
    found[i].begin = end;
    if (!places_[i]) continue;
    if (places_[i]->begin < end) return;  // out of order
    end = places_[i]->end;
  }
  size_t begin = plain_.text.size();
  for (size_t i = messages_.size(); i-- > 0;) {
    found[i].end = begin;
    if (places_[i]) begin = places_[i]->begin;
  }
  surroundings_ = std::move(found);
}

LocatedChat::Place LocatedChat::surroundings_of(size_t message) const {
  if (!surroundings_.empty()) return surroundings_[message];
  Place around{0, plain_.text.size()};
  for (size_t i = 0; i < message; ++i) {
    const bool before =
        places_[i] && (!places_[message] || places_[i]->end <= places_[message]->begin);
    if (before) around.begin = std::max(around.begin, places_[i]->end);
  }
  const size_t least = places_[message] ? places_[message]->end : around.begin;
  for (size_t i = message + 1; i < messages_.size(); ++i) {
    if (places_[i] && places_[i]->begin >= least) {
      around.end = std::min(around.end, places_[i]->begin);
    }
  }
  return around;
}

bool LocatedChat::prints_calls(size_t message) const {
  if (!is_marked_[message]) return false;
  const std::vector<ChatText>& texts = marked_->texts();
  const auto [first, last] = std::ranges::equal_range(texts, message, {}, &ChatText::message);
  const auto begin = static_cast<size_t>(first - texts.begin());
  std::vector<int> seen(last - first);
  bool has_repr = false;
  for (const size_t number : marks_of_[message]) {
    const MarkPlace& mark = marks_[number];
    seen[mark.text - begin] |= mark.is_end ? 2 : 1;
    const bool begins_key = texts[mark.text].kind == ChatText::kKey && !mark.is_end;
    has_repr = has_repr ||
               (begins_key && std::string_view(plain_.text).substr(0, mark.byte).ends_with("{'"));
  }
  for (size_t k = 0; k < seen.size(); ++k) {
    const ChatText& text = texts[begin + k];
    const bool of_call = text.kind == ChatText::kName || text.kind == ChatText::kKey ||
                         text.kind == ChatText::kArgument;
    if (of_call && seen[k] != 3) return false;
  }
  return !has_repr;
}

std::string LocatedChat::text_around(size_t message) const {
  const Place around = surroundings_of(message);
  std::string text = plain_.text.substr(around.begin, around.end - around.begin);
  if (const auto& place = places_[message]) {
    text.erase(place->begin - around.begin, place->end - place->begin);
  }
  return text;
}

/// A short prefix has the messages up to the first one of a user, and the last messages.
ordered_json LocatedChat::messages_before(size_t end, Prefix prefix) const {
  const ordered_json& all = marked_->messages();
  size_t head = 0;  // the first message after the head
  while (head < end && all[head].at("role") != "user") ++head;
  ++head;
  size_t tail = end < kLastMessages ? 0 : end - kLastMessages;
  // The roles follow each other as in the chat.
  while (tail > head && all[tail].at("role") != all[head].at("role")) --tail;
  const bool is_whole = prefix == Prefix::kWhole || tail <= head;
  ordered_json before = ordered_json::array();
  for (size_t i = 0; i < end; ++i) {
    if (!is_whole && i >= head && i < tail) i = tail;
    before.push_back(all[i]);
    if (prefix == Prefix::kWhole) continue;
    // The marks at both ends of a text stay.
    const auto content = before.back().find("content");
    if (content == before.back().end() || !content->is_string()) continue;
    *content = ends_of(content->get_ref<const std::string&>());
  }
  return before;
}

template <typename Result>
std::vector<Result> LocatedChat::by_short_prefixes(
    const std::vector<size_t>& answers,
    const std::function<Result(size_t message, Prefix prefix)>& find) const {
  std::vector<Result> results;
  std::set<std::pair<std::string, std::string_view>> seen;
  bool takes_short = answers.size() > kMostWholePrompts;
  for (size_t k = 0; k < answers.size(); ++k) {
    const size_t message = answers[k];
    if (!takes_short) {
      results.push_back(find(message, Prefix::kWhole));
      continue;
    }
    std::optional<Result> by_short;
    try {
      by_short = find(message, Prefix::kShort);
    } catch (const RowError&) {
      // The template needs the other messages.
    }
    const Place around = surroundings_of(message);
    const size_t begin = places_[message] ? places_[message]->begin : around.end;
    const std::string role = message == 0 ? "" : messages_[message - 1].at("role");
    const bool is_new =
        seen.size() < kMostNewTexts &&
        seen.emplace(role, std::string_view(plain_.text).substr(around.begin, begin - around.begin))
            .second;
    const bool is_checked = is_new || (k & (k - 1)) == 0 || k + 1 == answers.size();
    if (by_short && !is_checked) {
      results.push_back(*by_short);
      continue;
    }
    results.push_back(find(message, Prefix::kWhole));
    takes_short = by_short == results.back();
    // Earlier results that were not compared are not known to be those of whole prefixes.
    if (!takes_short) {
      for (size_t i = 0; i < k; ++i) results[i] = find(answers[i], Prefix::kWhole);
    }
  }
  return results;
}

std::vector<size_t> LocatedChat::begins_of_answers(const std::vector<size_t>& answers) const {
  return by_short_prefixes<size_t>(
      answers, [this](size_t message, Prefix prefix) { return begin_of_answer(message, prefix); });
}

std::vector<std::string> LocatedChat::endings_alone(const std::vector<size_t>& answers) const {
  return by_short_prefixes<std::string>(
      answers, [this](size_t message, Prefix prefix) { return ending_alone(message, prefix); });
}

size_t LocatedChat::begin_of_answer(size_t message, Prefix prefix) const {
  const Place around = surroundings_of(message);
  const size_t first = places_[message] ? places_[message]->begin : around.end;
  std::vector<MarkPlace> prompt_marks;
  const std::string prompt = marked_->without_marks(
      render_(messages_before(message, prefix), /*generation_prompt=*/true).text, prompt_marks);
  // Compares both texts from their last common mark before the answer.
  size_t at = 0, prompt_at = 0;
  std::map<std::pair<size_t, bool>, size_t> of_prompt;
  for (const MarkPlace& mark : prompt_marks) of_prompt[{mark.text, mark.is_end}] = mark.byte;
  auto mark = std::ranges::upper_bound(marks_, first, {}, &MarkPlace::byte);
  while (mark != marks_.begin()) {
    --mark;
    const ChatText& text = marked_->texts()[mark->text];
    if (text.message >= message || text.kind == ChatText::kName) continue;
    const auto same = of_prompt.find({mark->text, mark->is_end});
    if (same == of_prompt.end()) continue;
    at = mark->byte;
    prompt_at = same->second;
    break;
  }
  const size_t begin = at + common_prefix(std::string_view(plain_.text).substr(at, first - at),
                                          std::string_view(prompt).substr(prompt_at));
  if (begin < around.begin) {
    fail(
        fmt::format("the text before {} differs from the generation prompt, so the place where "
                    "the answer begins is unknown",
                    name_of_message(message)));
  }
  return begin;
}

std::string LocatedChat::ending_alone(size_t message, Prefix prefix) const {
  std::vector<MarkPlace> marks;
  const std::string text = marked_->without_marks(
      render_(messages_before(message + 1, prefix), /*generation_prompt=*/false).text, marks);
  const auto last = std::find_if(marks.rbegin(), marks.rend(), [&](const MarkPlace& mark) {
    return marked_->texts()[mark.text].message == message;
  });
  return last == marks.rend() ? "" : text.substr(last->byte);
}

std::string LocatedChat::name_of_message(size_t message) const {
  return fmt::format("message {} ({})", message + 1,
                     messages_[message].at("role").get<std::string>());
}

void LocatedChat::fail(const std::string& problem) const {
  throw RowError(fmt::format(
      "{}the model's chat_template cannot be used for this row: {}. Change the row, name a "
      "`template`, or put another one into chat_template.jinja in the model's folder.",
      source_.empty() ? "" : source_ + ": ", problem));
}

}  // namespace longspan
