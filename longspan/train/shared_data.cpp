#include "longspan/train/shared_data.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/data/example_file.h"
#include "longspan/data/packed_bytes.h"
#include "longspan/files/process_identity.h"
#include "longspan/liveness/agreement.h"

namespace longspan {
namespace {

std::string folder_of(const std::string& cache_dir) {
  if (!cache_dir.empty()) return cache_dir;
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  return error ? "/tmp" : folder.string();  // clusters name folders that a machine lacks
}

void pack(const std::optional<SavedChat::Token>& token, PackedBytes& to) {
  to.add(token.has_value());
  if (!token) return;
  to.add_text(token->text);
  to.add(token->id);
}

std::optional<SavedChat::Token> unpack_token(UnpackedBytes& from) {
  if (!from.next<bool>()) return std::nullopt;
  const std::string text(from.next_text());
  return SavedChat::Token{text, from.next<int32_t>()};
}

void pack(const SavedChat& chat, PackedBytes& to) {
  to.add(chat.chat_template.has_value());
  to.add_text(chat.chat_template.value_or(""));
  pack(chat.eos, to);
  pack(chat.pad, to);
  to.add_list(chat.stop_ids);
}

SavedChat unpack_chat(UnpackedBytes& from) {
  SavedChat chat;
  const bool has_template = from.next<bool>();
  const std::string text(from.next_text());
  if (has_template) chat.chat_template = text;
  chat.eos = unpack_token(from);
  chat.pad = unpack_token(from);
  chat.stop_ids = from.next_list<int32_t>();
  return chat;
}

/// Writes the examples, training before evaluation, and all else as the note.
void write(const RunData& data, ExampleFileWriter& file) {
  for (const ExampleSet* set : {data.train.get(), data.eval.get()}) {
    for (int64_t i = 0; i < set->size(); ++i) file.add(*set->example(i));
  }
  PackedBytes note;
  note.add(data.train->size());
  note.add_text(data.fingerprint);
  note.add_text(data.eval_fingerprint);
  note.add(data.chat.has_value());
  if (data.chat) pack(*data.chat, note);
  file.finish(note.bytes());
}

RunData data_in(InputFile input) {
  const auto file = std::make_shared<const ExampleFile>(std::move(input));
  const std::string note = file->note();
  UnpackedBytes from(note);
  RunData data;
  const auto num_train = from.next<int64_t>();
  data.train = std::make_unique<ExamplesInFile>(file, 0, num_train);
  data.eval = std::make_unique<ExamplesInFile>(file, num_train, file->num_examples() - num_train);
  data.fingerprint = from.next_text();
  data.eval_fingerprint = from.next_text();
  if (from.next<bool>()) data.chat = unpack_chat(from);
  return data;
}

/// Returns the first rank on this rank's machine. Each text is a machine and a path in two lines.
/// No rank shares an unknown machine.
int first_of_machine(const std::vector<std::string>& offers, int own_rank) {
  const std::string machine = offers[own_rank].substr(0, offers[own_rank].find('\n') + 1);
  if (machine == "\n") return own_rank;
  return static_cast<int>(
      std::ranges::find_if(offers,
                           [&](const std::string& offer) { return offer.starts_with(machine); }) -
      offers.begin());
}

}  // namespace

RunData share_data(const Group& world, Notices& notices, const std::string& cache_dir,
                   Events& events, const std::function<RunData()>& read) {
  // Each rank opens the file of the first one before anything is read. A folder that takes no file
  // shows at once, and the file needs no name.
  std::unique_ptr<ExampleFileWriter> own;
  all_or_none(world, [&] { own = std::make_unique<ExampleFileWriter>(folder_of(cache_dir)); });
  const std::vector<std::string> offers = world.gather_text(own_machine() + "\n" + own->path());
  const int first = first_of_machine(offers, world.rank());
  std::optional<InputFile> file;
  std::string refusal;
  if (first != world.rank()) {
    try {
      file.emplace(offers[first].substr(offers[first].find('\n') + 1), "encoded data set");
      own.reset();
    } catch (const UserError& error) {
      refusal = fmt::format("warning: rank {} reads the data sets by itself, not from rank {}: {}",
                            world.rank(), first, error.what());
    }
  }
  for (const std::string& text : world.gather_text(refusal)) {
    if (!text.empty()) events.say(text);
  }
  all_or_none_patiently(world, notices, [&] {
    if (!own) return;
    write(read(), *own);
    ::malloc_trim(0);  // else the freed examples stay with this process
  });
  RunData data;
  all_or_none(world, [&] { data = data_in(own ? own->open() : *std::move(file)); });
  return data;
}

}  // namespace longspan
