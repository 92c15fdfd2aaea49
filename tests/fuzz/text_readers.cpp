// Readers of tokenizers, chat templates and rendered conversations, csv files, parquet and Arrow
// files, terminal text, TensorBoard's files.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "longspan/data/function_calls.h"
#include "longspan/data/turns.h"
#include "longspan/input/json_text.h"
#include "longspan/text/chat_template.h"
#include "longspan/text/columns_reader.h"
#include "longspan/text/csv_reader.h"
#include "longspan/text/decode_stream.h"
#include "longspan/text/event_file.h"
#include "longspan/text/shown.h"
#include "tests/fuzz/fuzz.h"

namespace longspan {
namespace {

using fuzz::choose;
using fuzz::Folder;

constexpr const char* kChat =
    R"({"messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"},
 {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f",
  "arguments": {"x": [1, 2.5, null, "é"]}}}]}, {"role": "tool", "content": "{}"},
 {"role": "assistant", "content": "<think>hm</think>yes", "reasoning_content": "hm"}],
 "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>", "tools": null,
 "strftime_now": "2026-11-26T00:05:09.000007"})";

Conversation conversation_from(std::string_view input) {
  constexpr Role kRoles[] = {Role::kUser, Role::kAssistant, Role::kSystem, Role::kObservation};
  Conversation conversation;
  conversation.source = "rows.json, row 1";
  for (const std::string& piece : fuzz::lines(input)) {
    std::string_view text = piece;
    const int kind = choose(text, 6);
    if (kind < 4) {
      conversation.messages.push_back({kRoles[kind], std::string(text)});
    } else if (kind == 4) {
      conversation.messages.push_back(
          {.role = Role::kAssistant,
           .content = "",
           .calls = parse_function_calls(std::string(text), conversation.source)});
    } else {
      conversation.messages.push_back(
          {.role = Role::kAssistant, .content = "so", .thoughts = std::string(text)});
    }
  }
  return conversation;
}

void use(const Tokenizer& tokenizer, const std::string& text) {
  const std::vector<int32_t> ids = tokenizer.encode(text, /*add_special_tokens=*/true);
  tokenizer.decode(ids);
  const EncodedText encoded = tokenizer.encode_with_offsets(text);
  for (size_t i = 0; i < encoded.ids.size(); ++i) {
    fuzz::require(encoded.begin[i] <= encoded.end[i] && encoded.end[i] <= 3 * text.size(),
                  "a token lies in its text");
  }
  DecodeStream stream(tokenizer);
  for (const int32_t id : ids) stream.step(id);
  stream.finish();
}

std::vector<std::vector<std::string>> records_of(const std::string& path) {
  std::vector<std::vector<std::string>> records;
  CsvReader reader(InputFile(path, "file"));
  int64_t last_line = 0;
  for (CsvRecord record; reader.next(record); last_line = record.line) {
    fuzz::require(record.line > last_line, "a record begins in a line of its own");
    fuzz::require(!record.cells.empty(), "a record has cells");
    records.emplace_back(record.cells.begin(), record.cells.end());
  }
  return records;
}

/// Records that are written with quotes around each cell are read as they were.
FUZZ_READER(csv) {
  const Folder folder;
  const auto records = records_of(folder.write("rows.csv", input));
  std::string written;
  for (const std::vector<std::string>& record : records) {
    for (const std::string& cell : record) {
      written += written.empty() || written.back() == '\n' ? "\"" : ",\"";
      for (const char c : cell) written += c == '"' ? "\"\"" : std::string(1, c);
      written += '"';
    }
    written += '\n';
  }
  fuzz::require(records_of(folder.write("quoted.csv", written)) == records,
                "quotes around a cell change nothing");
}

FUZZ_READER(columns) {
  const auto format =
      choose(input, 2) == 0 ? ColumnsReader::Format::kParquet : ColumnsReader::Format::kArrow;
  const Folder folder;
  ColumnsReader reader(InputFile(folder.write("rows", input), "dataset"), format);
  std::string_view record;
  for (int64_t number = 0; number < 10'000 && reader.next(record); ++number) {
    fuzz::require(parse_ordered_json(record, "rows").is_object(), "a record is an object of JSON");
  }
}

FUZZ_READER(json) {
  const bool ok = nlohmann::json::accept(input);
  parse_json(input, "file.json");
  fuzz::require(ok, "what is taken is JSON");
}

/// tokenizer.json, followed by a text for it.
FUZZ_READER(tokenizer) {
  const std::vector<std::string> parts = fuzz::pieces(input, 2);
  const Folder folder;
  folder.write("tokenizer.json", parts[0]);
  folder.write("tokenizer_config.json", "{}");
  use(Tokenizer::load(folder.path()), parts[1].empty() ? "yes and no, äß 漢字 12" : parts[1]);
}

/// The small files next to tokenizer.json: token names, chat templates.
FUZZ_READER(tokenizer_config) {
  static const std::string file = [] {
    std::ifstream stream(fuzz::small_tokenizer_folder() + "/tokenizer.json");
    return std::string(std::istreambuf_iterator<char>(stream), {});
  }();
  const int way = choose(input, 4);
  const std::vector<std::string> parts = fuzz::pieces(input, 2);
  const Folder folder;
  folder.write("tokenizer.json", file);
  folder.write("tokenizer_config.json", parts[0]);
  constexpr const char* kNames[] = {"special_tokens_map.json", "chat_template.jinja",
                                    "chat_template.json", "config.json"};
  if (!parts[1].empty()) folder.write(kNames[way], parts[1]);
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  tokenizer.adds_bos_token();
  use(tokenizer, "yes <|im_end|>");
  make_model_template(tokenizer, std::nullopt, {}, local_time_now())->turn_ends();
}

FUZZ_READER(encoded_text) {
  const Tokenizer& tokenizer = fuzz::small_tokenizer();
  const std::string text(input);
  use(tokenizer, text);
  fuzz::require(tokenizer.encode_batch({text, text}).size() == 2, "each text is encoded");
  tokenizer.id_of(text);
}

/// Four-byte numbers as token ids.
FUZZ_READER(decoded_ids) {
  std::vector<int32_t> ids;
  for (; input.size() >= 4; input.remove_prefix(4)) {
    uint32_t id = 0;
    for (int byte = 3; byte >= 0; --byte) id = id << 8 | static_cast<unsigned char>(input[byte]);
    ids.push_back(static_cast<int32_t>(id));
  }
  fuzz::small_tokenizer().decode(ids);
  fuzz::small_tokenizer().decode(ids, /*skip_special_tokens=*/true);
}

FUZZ_READER(chat_template) {
  const RenderedChat chat = render_chat_template(input, kChat);
  for (const GenerationSpan& span : chat.generation) {
    fuzz::require(span.begin <= span.end && span.end <= chat.text.size(),
                  "a span lies in its text");
  }
}

/// A template and its variables.
FUZZ_READER(chat_variables) {
  const std::vector<std::string> parts = fuzz::pieces(input, 2);
  render_chat_template(parts[0], parts[1]);
}

FUZZ_READER(model_template) {
  static const std::unique_ptr<TurnEncoder> chatml =
      make_model_template(fuzz::small_tokenizer(), "be kind", {}, local_time_now());
  const Conversation conversation = conversation_from(input);
  chatml->question(conversation);
  chatml->turns(conversation);
}

FUZZ_READER(named_templates) {
  const std::vector<std::string> names = named_templates();
  const std::string& name = names[choose(input, static_cast<int>(names.size()))];
  const bool thinks = choose(input, 2) == 1;
  const auto encoder = make_named_template(name, fuzz::small_tokenizer(), std::nullopt,
                                           {thinks, !thinks}, local_time_now());
  const Conversation conversation = conversation_from(input);
  encoder->turns(conversation);
  encoder->question(conversation);
}

FUZZ_READER(terminal_text) {
  const std::string clean = shown(input);
  fuzz::require(clean.find('\x1b') == std::string::npos, "no escape reaches a terminal");
  fuzz::require(shown(clean) == clean, "cleaning twice changes nothing");
}

/// A file left by an earlier run.
FUZZ_READER(event_files) {
  const int64_t last_step = choose(input, 4) - 1;
  const Folder folder;
  folder.write("events.out.tfevents.1.host.1.train", input);
  EventFile file(folder.path(), "train", last_step);
  file.add({{"loss", 1.0}}, 5);
}

}  // namespace
}  // namespace longspan
