#include "longspan/data/early_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <system_error>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/data/packed_conversation.h"
#include "longspan/data/permutation.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/choices.h"
#include "longspan/settings/data_settings.h"

namespace longspan {
namespace {

/// Bytes of packed rows that a thread encodes at a time: some hundredths of a second.
constexpr int64_t kBytesOfThread = int64_t{64} << 10;
constexpr std::chrono::milliseconds kBetweenLooks{50};

/// White space, control and format characters, and marks that are not drawn: a tokenizer may leave
/// them out.
struct CharacterRange {
  uint32_t first, last;
};
constexpr CharacterRange kInvisible[] = {
    {0x00, 0x20},     {0x7f, 0xa0},     {0xad, 0xad},     {0x34f, 0x34f},    {0x600, 0x605},
    {0x61c, 0x61c},   {0x6dd, 0x6dd},   {0x70f, 0x70f},   {0x1680, 0x1680},  {0x180b, 0x180f},
    {0x2000, 0x200f}, {0x2028, 0x202f}, {0x205f, 0x206f}, {0x3000, 0x3000},  {0x3164, 0x3164},
    {0xfe00, 0xfe0f}, {0xfeff, 0xfeff}, {0xfff0, 0xfffb}, {0xe0000, 0xe0fff}};

/// Removes the first character of UTF-8, or the first byte of other text, and returns its number.
uint32_t take_character(std::string_view& text) {
  const auto lead = static_cast<unsigned char>(text.front());
  const size_t size = lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  uint32_t character = size == 1 ? lead : lead & (0xffU >> (size + 1));
  for (size_t i = 1; i < std::min(size, text.size()); ++i) {
    character = character << 6 | (static_cast<unsigned char>(text[i]) & 0x3fU);
  }
  text.remove_prefix(std::min(size, text.size()));
  return character;
}

/// Whether the tokenizer may leave fewer than two tokens of the text.
bool is_doubtful(std::string_view text) {
  const size_t num_bytes = text.size();
  if (num_bytes <= EarlyEncoder::kShortText) return true;
  bool has_word = false, has_gap = false;
  while (!text.empty()) {
    const uint32_t character = take_character(text);
    const bool is_invisible = std::ranges::any_of(kInvisible, [&](const CharacterRange& range) {
      return character >= range.first && character <= range.last;
    });
    if (!is_invisible && (has_gap || num_bytes > EarlyEncoder::kShortWord)) return false;
    has_word = has_word || !is_invisible;
    has_gap = has_word && is_invisible;
  }
  return true;
}

std::string text_of(const Xxh64& hash) { return fmt::format("{:016x}", hash.value()); }

}  // namespace

std::string why_rows_wait(const DataSettings& config, const Stage& stage) {
  if (stage.rows == RowKind::kQuestion) {
    return fmt::format("stage {} may leave out questions by their length", stage.name);
  }
  if (config.neat_packing || packs(config, stage)) {
    return "packing needs the lengths of all rows (streaming: true packs as it reads)";
  }
  if (on_bad_row_of(config) == OnBadRow::kSkip) {
    return "with on_bad_row: skip, the encoding decides how many rows there are";
  }
  if (stage.rows == RowKind::kText && config.cutoff_len < 2) return "cutoff_len is 1";
  if (!keep_file_order(config, stage, config.dataset)) {
    return "num_samples and mix_strategy order rows in memory";
  }
  return "";
}

EarlyEncoder::EarlyEncoder(const EarlyJob& job, std::vector<std::string>& notes,
                           const std::function<void(const std::vector<Conversation>&)>& seen)
    : job_(job) {
  const std::string folder = temporary_rows_folder(job.config.cache_dir);
  read_texts_ = std::make_unique<ExampleFileWriter>(folder);
  const auto take = [&](const std::vector<Conversation>& rows) {
    seen(rows);
    read(rows);
  };
  read_in_parts(job.config, job.stage, job.config.dataset, notes, take);
  const int64_t num_read_train = num_read_;
  fingerprint_ = text_of(hash_);
  if (!job.config.eval_dataset.empty()) {
    take(read_conversations(job.config, job.stage, job.seed, job.config.eval_dataset, notes));
  }
  read_texts_->finish("");
  texts_ = std::make_unique<ExampleFile>(read_texts_->open());
  read_texts_.reset();
  number_rows(num_read_train);
}

EarlyEncoder::~EarlyEncoder() {
  {
    const std::scoped_lock lock(mutex_);
    is_unwanted_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

Encoding EarlyEncoder::encoding_of(Part& part) const {
  return {job_.config,     job_.stage, job_.tokenizer, job_.template_time,
          job_.vocab_size, part.bad,   part.chats};
}

void EarlyEncoder::read(const std::vector<Conversation>& rows) {
  if (have_pictures(rows)) {  // throws
    encode_examples({job_.config, job_.stage, job_.tokenizer, job_.template_time, job_.vocab_size},
                    rows);
  }
  const std::vector<bool> is_kept = kept_rows(rows);
  PackedBytes bytes;
  for (size_t i = 0; i < rows.size(); ++i, ++num_read_) {
    if (!is_kept[i]) continue;
    bytes.clear();
    pack(rows[i], bytes);
    read_texts_->add_record(bytes.bytes());
    read_of_texts_.push_back(num_read_);
    bytes.clear();
    Conversation unplaced = rows[i];
    unplaced.source.clear();  // machines may have the files in other folders
    pack(unplaced, bytes);
    hash_.add(bytes.bytes().data(), bytes.bytes().size());
  }
}

std::vector<bool> EarlyEncoder::kept_rows(const std::vector<Conversation>& rows) {
  std::vector<bool> is_kept(rows.size(), true);
  if (job_.stage.rows != RowKind::kText) return is_kept;
  std::vector<Conversation> doubtful;
  std::vector<size_t> places;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string& text = rows[i].messages.front().content;
    if (!is_doubtful(text)) continue;
    doubtful.push_back(rows[i]);
    places.push_back(i);
    is_kept[i] = false;
  }
  if (doubtful.empty()) return is_kept;
  Part unused;
  const Encoding encoding = encoding_of(unused);
  for (const EncodedRow& row : job_.stage.encode(encoding, doubtful).rows) {
    is_kept[places[row.row]] = true;
  }
  for (size_t k = 0; k < places.size(); ++k) {
    if (is_kept[places[k]]) continue;
    left_out_.emplace_back(num_read_ + static_cast<int64_t>(places[k]),
                           job_.stage.encode(encoding, {doubtful[k]}).cut);
  }
  return is_kept;
}

void EarlyEncoder::number_rows(int64_t num_read_train) {
  std::vector<bool> is_eval(num_read_, false);
  std::fill(is_eval.begin() + num_read_train, is_eval.end(), true);
  if (job_.config.val_size > 0) is_eval = validation_rows(job_.config, num_read_train, job_.seed);
  for (const bool eval : {false, true}) {
    for (int64_t text = 0; text < std::ssize(read_of_texts_); ++text) {
      if (is_eval[read_of_texts_[text]] == eval) texts_of_rows_.push_back(text);
    }
    if (!eval) num_train_ = num_rows();
  }
  fingerprint_ += fmt::format(" {}", num_train_);
  eval_fingerprint_ = fmt::format("{} {}", text_of(hash_), num_rows());
  read_of_texts_ = {};
  for (const auto& [row, cut] : left_out_) (is_eval[row] ? eval_ : train_).cut.add(cut);
  order_.resize(num_rows());
  std::iota(order_.begin(), order_.end(), int64_t{0});
  if (num_train_ == 0) return;
  if (job_.shuffles) {
    const int64_t epoch = job_.num_trained / num_train_;
    std::ranges::copy(seeded_permutation(num_train_, job_.seed, epoch), order_.begin());
  }
  std::rotate(order_.begin(), order_.begin() + job_.num_trained % num_train_,
              order_.begin() + num_train_);
}

bool EarlyEncoder::has_too_few() const {
  const int64_t least = job_.stage.rows == RowKind::kUnpairedPreference ? 2 : 1;
  const int64_t num_eval = num_rows() - num_train_;
  const bool evaluates = job_.config.val_size > 0 || !job_.config.eval_dataset.empty();
  return num_train_ < least || (evaluates && num_eval < least);
}

Conversation EarlyEncoder::text(int64_t row) const {
  return unpack_conversation(texts_->record(texts_of_rows_.at(row)));
}

void EarlyEncoder::start(std::string_view note, std::function<void()> finish) {
  file_ = std::make_unique<EarlyFileWriter>(temporary_rows_folder(job_.config.cache_dir),
                                            num_rows() + 1);
  file_->write(num_rows(), note);
  encoded_ = std::make_unique<EarlyFile>(file_->open());
  is_taken_.resize(num_rows());
  is_there_.resize(num_rows());
  wanted_ = {0};  // gives an idle row its columns
  finish_ = std::move(finish);
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error&) {  // the system has no further thread
    work();
  }
}

void EarlyEncoder::work() {
  std::exception_ptr error;
  try {
    for (std::vector<int64_t> rows = next_rows(); !rows.empty(); rows = next_rows()) {
      encode(rows);
      const std::scoped_lock lock(mutex_);
      for (const int64_t row : rows) is_there_[row] = true;
      changed_.notify_all();
    }
    finish_();
    texts_.reset();  // frees the disk
  } catch (const Unwanted&) {
    // The destructor waits for the end of the thread.
  } catch (const UserError& problem) {
    // No DiskFullError: the disk of a checkpoint has room.
    error = std::make_exception_ptr(UserError(problem.what()));
  } catch (...) {
    error = std::current_exception();
  }
  // Releases the lock of a kept file: a process that waits for the lock must not wait for this run.
  finish_ = nullptr;
  const std::scoped_lock lock(mutex_);
  error_ = error;
  has_ended_ = true;
  changed_.notify_all();
}

std::vector<int64_t> EarlyEncoder::next_rows() {
  require_wanted();
  const int64_t most = kBytesOfThread * job_.config.preprocessing_num_workers.value_or(1);
  std::vector<int64_t> rows;
  for (int64_t num_bytes = 0; num_bytes < most;) {
    int64_t row = -1;
    {
      const std::scoped_lock lock(mutex_);
      while (!wanted_.empty() && is_taken_[wanted_.front()]) wanted_.pop_front();
      if (!wanted_.empty()) row = wanted_.front();
    }
    while (next_in_order_ < order_.size() && is_taken_[order_[next_in_order_]]) ++next_in_order_;
    if (row < 0 && next_in_order_ < order_.size()) row = order_[next_in_order_];
    const bool is_of_set = rows.empty() || (rows.front() < num_train_) == (row < num_train_);
    if (row < 0 || !is_of_set) break;
    is_taken_[row] = true;
    rows.push_back(row);
    num_bytes += std::ssize(texts_->record(texts_of_rows_[row]));
  }
  return rows;
}

void EarlyEncoder::encode(const std::vector<int64_t>& rows) {
  const bool trains = rows.front() < num_train_;
  Part& part = trains ? train_ : eval_;
  std::vector<Conversation> texts;
  for (const int64_t row : rows) texts.push_back(text(row));
  Encoding encoding = encoding_of(part);
  std::vector<Message> answers_before;
  if (job_.stage.rows == RowKind::kUnpairedPreference) {
    const int64_t begin = trains ? 0 : num_train_, end = trains ? num_train_ : num_rows();
    for (const int64_t row : rows) {
      answers_before.push_back(text(row == begin ? end - 1 : row - 1).messages.back());
    }
    encoding.answers_before = &answers_before;
  }
  const EncodedExamples encoded = job_.stage.encode(encoding, texts);
  part.num_encoded += std::ssize(rows);
  part.bad.settle(OnBadRow::kStop, "the data, as far as they are encoded", part.num_encoded);
  part.cut.add(encoded.cut);
  PackedBytes bytes;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i >= encoded.rows.size() || encoded.rows[i].row != static_cast<int64_t>(i)) {
      throw UserError(fmt::format(
          "{}: the tokenizer leaves fewer than two tokens of this text, so the row cannot be "
          "trained. Remove the row: the run has counted it.",
          texts[i].source));
    }
    bytes.clear();
    pack(encoded.examples[i], bytes);
    file_->write(rows[i], bytes.bytes());
  }
}

bool EarlyEncoder::wait_for(const std::vector<int64_t>& rows, const std::function<bool()>& stops) {
  const auto is_missing = [this](int64_t row) { return !is_there_[row]; };
  {
    const std::scoped_lock lock(mutex_);
    wanted_.clear();
    std::ranges::copy_if(rows, std::back_inserter(wanted_), is_missing);
  }
  return wait([&] { return std::ranges::none_of(rows, is_missing); }, stops);
}

bool EarlyEncoder::wait_for_end(const std::function<bool()>& stops) {
  return wait([this] { return has_ended_; }, stops);
}

bool EarlyEncoder::wait(const std::function<bool()>& is_there, const std::function<bool()>& stops) {
  std::unique_lock lock(mutex_);
  while (!error_ && !is_there()) {
    if (stops && stops()) return false;
    changed_.wait_for(lock, kBetweenLooks);
  }
  if (error_) std::rethrow_exception(error_);
  return true;
}

bool EarlyEncoder::has_ended() const {
  const std::scoped_lock lock(mutex_);
  return has_ended_;
}

void EarlyEncoder::require_wanted() const {
  const std::scoped_lock lock(mutex_);
  if (is_unwanted_) throw Unwanted();
}

Example EarlyEncoder::example(int64_t row) const {
  require_wanted();
  return unpack_example(encoded_->record(row));
}

EncodedExamples EarlyEncoder::report_of(const Part& part) {
  EncodedExamples report;
  report.cut = part.cut;
  report.chats = part.chats.notes();
  return report;
}

}  // namespace longspan
