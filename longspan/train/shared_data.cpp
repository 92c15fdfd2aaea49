#include "longspan/train/shared_data.h"

#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/data/example_file.h"
#include "longspan/data/packed_bytes.h"
#include "longspan/files/process_identity.h"
#include "longspan/liveness/agreement.h"
#include "longspan/text/shown.h"

namespace longspan {
namespace {

constexpr const char* kSharedFile = "encoded data set";
/// Before the path of a file that is kept, or still written.
constexpr std::string_view kKept = "kept", kEarly = "early";

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

/// Passes lines on, and keeps them.
class KeptLines final : public EventSink {
 public:
  explicit KeptLines(const Events& events) : events_(events) {}
  void take(const Event& event) override {
    if (const auto* said = std::get_if<Said>(&event)) lines.push_back(said->text);
    events_.tell(event);
  }
  std::vector<std::string> lines;

 private:
  const Events& events_;
};

/// Returns all but the examples as a text, which completes a file. `key` and `lines`: for a file
/// that is kept.
std::string note_of(const DataNote& data, const std::string& key,
                    const std::vector<std::string>& lines) {
  PackedBytes note;
  note.add_text(key);
  note.add(std::ssize(lines));
  for (const std::string& line : lines) note.add_text(line);
  note.add(data.num_train);
  note.add_text(data.fingerprint);
  note.add_text(data.eval_fingerprint);
  note.add(data.chat.has_value());
  if (data.chat) pack(*data.chat, note);
  return note.bytes();
}

/// Returns a set of consecutive examples, by the first one and their number.
using MakeSet = std::function<std::unique_ptr<ExampleSet>(int64_t, int64_t)>;

RunData unpack_data(const std::string& note, int64_t num_examples, const MakeSet& make_set,
                    const Events* told) {
  UnpackedBytes from(note);
  RunData data;
  from.next_text();  // the key
  for (int64_t left = from.next<int64_t>(); left > 0; --left) {
    const std::string_view line = from.next_text();
    if (told != nullptr) told->say(shown(line));
  }
  const auto num_train = from.next<int64_t>();
  if (num_train < 0 || num_train > num_examples) {
    throw std::out_of_range("the number of training rows");
  }
  data.train = make_set(0, num_train);
  data.eval = make_set(num_train, num_examples - num_train);
  data.fingerprint = from.next_text();
  data.eval_fingerprint = from.next_text();
  if (from.next<bool>()) data.chat = unpack_chat(from);
  return data;
}

RunData unpack_data(const std::shared_ptr<const ExampleFile>& file, const Events* told) {
  return unpack_data(
      file->note(), file->num_examples(),
      [&](int64_t begin, int64_t size) {
        return std::make_unique<ExamplesInFile>(file, begin, size);
      },
      told);
}

/// The rows of a file that is still written.
RunData early_data_in(InputFile input, int64_t num_rows) {
  const auto file = std::make_shared<const EarlyFile>(std::move(input));
  return unpack_data(
      file->record(num_rows), num_rows,
      [&](int64_t begin, int64_t size) {
        return std::make_unique<EarlyExamples>(file, begin, size);
      },
      /*told=*/nullptr);
}

/// `rules`: of a kept file, or null. `told`: gets the lines that were told when a kept file was
/// made, or null.
RunData data_in(InputFile input, const ExampleRules* rules, const Events* told) {
  if (rules == nullptr) {
    return unpack_data(std::make_shared<const ExampleFile>(std::move(input)), told);
  }
  const std::string path = input.path();
  try {
    return unpack_data(std::make_shared<const ExampleFile>(std::move(input), *rules), told);
  } catch (const std::out_of_range& problem) {
    throw UserError(fmt::format(
        "{} has no whole note ({}). Set overwrite_cache: true to encode the data sets again.", path,
        problem.what()));
  }
}

struct EncodedFile {
  InputFile file;
  bool is_kept = true;   // false: it disappears with the run
  bool is_found = true;  // false: this run made it
};

/// The cache of a run, and a new file for its rows.
class KeptRows {
 public:
  /// Looks for the rows. If there are none, other processes wait until this object ends. `waits`:
  /// for another process that encodes them.
  KeptRows(std::unique_ptr<RowCache> cache, const Events& events, bool waits)
      : cache_(std::move(cache)) {
    const RowCachePlace& place = cache_->place();
    try {
      found_ = cache_->find(events, waits);
      if (found_) return;
      key_ = cache_->key_text();
      file_ = std::make_unique<ExampleFileWriter>(place.folder,
                                                  place.is_given ? "tokenized_path" : "cache_dir");
    } catch (const FolderBusyError&) {
      events.say(fmt::format(
          "Another process encodes the data sets into {}: this process encodes them, too, without "
          "keeping them.",
          place.folder));
    } catch (const UserError& error) {
      give_up(error, events);
    }
  }

  /// False: the user's cache cannot be used, which was told.
  bool can_be_used() const { return found_ || file_; }
  bool has_rows() const { return found_.has_value(); }
  bool is_given() const { return cache_->place().is_given; }
  const std::string& folder() const { return cache_->place().folder; }
  EncodedFile take_found() { return {*std::move(found_)}; }

  /// Encodes the data sets into the file. Does not keep rows with more than tokens. Other processes
  /// may write when this function ends.
  EncodedFile encode(const Events& events, const ReadData& read) {
    const Release release{*cache_};
    const auto [note, tokens_only] = write(events, read);
    file_->finish(note);
    if (tokens_only) cache_->keep(*file_, events);
    return EncodedFile{file_->open(), tokens_only, /*is_found=*/false};
  }

  /// Returns whether the rows can be kept: no file was written since the start of the run. For an
  /// early start, when the files were read.
  bool files_were_read(const Events& events) {
    try {
      cache_->require_unchanged();
      return true;
    } catch (const UserError& error) {
      give_up(error, events);
      return false;
    }
  }
  /// Encodes as encode() does, for later runs alone: a file that cannot be kept is no error.
  void encode_for_later(const Events& events, const ReadData& read) {
    const Release release{*cache_};
    const auto [note, tokens_only] = write(events, read);
    try {
      file_->finish(note);
      if (tokens_only) cache_->keep(*file_, events);
    } catch (const std::exception& error) {
      events.say(fmt::format("warning: The encoded rows are not kept: {}", error.what()));
    }
  }

 private:
  struct Release {
    RowCache& cache;
    ~Release() { cache.release(); }
  };

  /// Called with the exception that is being handled.
  void give_up(const UserError& error, const Events& events) {
    if (is_given()) throw;
    cache_->release();
    events.say(fmt::format("The encoded rows are not kept: {}", error.what()));
  }

  /// Writes the examples. Returns the note, and whether the rows have tokens only.
  std::pair<std::string, bool> write(const Events& events, const ReadData& read) {
    KeptLines kept(events);
    Events recorded(/*rank=*/0, &kept);
    bool tokens_only = true;
    const DataNote data = read(recorded, [&](const Example& example) {
      tokens_only = tokens_only && holds_tokens_only(example);
      if (!tokens_only && cache_->place().is_given) {
        throw UserError(
            "tokenized_path keeps tokens, and the rows have pictures; remove tokenized_path");
      }
      if (!tokens_only) cache_->release();
      file_->add(example);
    });
    return {note_of(data, key_, kept.lines), tokens_only};
  }

  std::unique_ptr<RowCache> cache_;
  std::optional<InputFile> found_;
  std::string key_;
  std::unique_ptr<ExampleFileWriter> file_;
};

/// Starts the encoding, which ends by keeping the rows. `kept`: null where nothing is kept; the
/// thread of the encoding is then the only owner, and ends the lock also after an error.
void start(EarlyData& early, std::shared_ptr<KeptRows> kept) {
  const bool is_awaited = kept && kept->is_given();
  early.start(
      note_of(early.note(), "", {}),
      [kept = std::move(kept)](Events& told, const ReadData& read) {
        if (kept) {
          kept->encode_for_later(told, read);
        } else {
          read(told, [](const Example&) {});
        }
      },
      is_awaited);
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
                   Events& events, const ReadData& read, const ExampleRules& rules,
                   const std::function<std::unique_ptr<RowCache>()>& make_cache,
                   const EarlyStart& early_start) {
  // Each rank opens the file of the first one before anything is read. A folder that takes no file
  // shows at once, and the file needs no name.
  std::unique_ptr<ExampleFileWriter> own;
  all_or_none(world,
              [&] { own = std::make_unique<ExampleFileWriter>(temporary_rows_folder(cache_dir)); });
  const std::vector<std::string> offers = world.gather_text(own_machine() + "\n" + own->path());
  const int first = first_of_machine(offers, world.rank());
  std::optional<InputFile> file;
  std::string refusal;
  if (first != world.rank()) {
    try {
      file.emplace(offers[first].substr(offers[first].find('\n') + 1), kSharedFile);
      own.reset();
    } catch (const UserError& error) {
      refusal = fmt::format("warning: rank {} reads the data sets by itself, not from rank {}: {}",
                            world.rank(), first, error.what());
    }
  }
  for (const std::string& text : world.gather_text(refusal)) {
    if (!text.empty()) events.say(text);
  }
  std::shared_ptr<KeptRows> kept;
  std::unique_ptr<EarlyData> early;
  std::optional<EncodedFile> encoded;
  all_or_none_patiently(world, notices, [&] {
    if (!own) return;
    if (std::unique_ptr<RowCache> cache = make_cache ? make_cache() : nullptr) {
      const bool waits = !early_start.applies || !early_start.applies();
      kept = std::make_shared<KeptRows>(std::move(cache), events, waits);
      if (!kept->can_be_used()) kept.reset();
    }
    if (kept && kept->has_rows()) {
      encoded = kept->take_found();
    } else if (early_start.read && (early = early_start.read())) {
      if (kept && !kept->files_were_read(events)) kept.reset();
      start(*early, std::move(kept));
    } else if (kept) {
      encoded = kept->encode(events, read);
    } else {
      const DataNote data = read(events, [&](const Example& example) { own->add(example); });
      own->finish(note_of(data, "", {}));
      encoded = EncodedFile{own->open(), /*is_kept=*/false, /*is_found=*/false};
    }
    ::malloc_trim(0);  // else the freed memory stays with this process
  });
  // With a cache, or an early start, the file of the examples is another one than the offered one.
  std::string where;
  if (early) {
    where = fmt::format("{}{}\n{}", kEarly, early->file().path(), early->num_rows());
  } else if (kept && encoded) {
    where = fmt::format("{}/proc/{}/fd/{}", encoded->is_kept ? kKept : "", ::getpid(),
                        encoded->file.descriptor());
  }
  const std::vector<std::string> places = world.gather_text(where);
  const auto is_early = [](const std::string& place) { return place.starts_with(kEarly); };
  const bool some_are_early = std::ranges::any_of(places, is_early);
  std::string of_first = places[own ? world.rank() : first];
  RunData data;
  all_or_none(world, [&] {
    if (is_early(of_first)) {
      of_first.erase(0, kEarly.size());
      const size_t end = of_first.find('\n');
      const int64_t num_rows = std::stoll(of_first.substr(end + 1));
      data = early_data_in(
          early ? early->file().open() : InputFile(of_first.substr(0, end), kSharedFile), num_rows);
      return;
    }
    if (!own) {
      const bool is_kept = of_first.starts_with(kKept);
      if (!of_first.empty()) file.emplace(of_first.substr(is_kept ? kKept.size() : 0), kSharedFile);
      encoded = EncodedFile{*std::move(file), is_kept};
    }
    const bool tells = own && encoded->is_found;
    data = data_in(std::move(encoded->file), encoded->is_kept ? &rules : nullptr,
                   tells ? &events : nullptr);
    if (tells) events.say(fmt::format("The encoded rows were read from {}.", kept->folder()));
  });
  if (some_are_early) {
    data.early = std::make_shared<EarlyRows>(world, notices, events, std::move(early), data);
  }
  return data;
}

}  // namespace longspan
