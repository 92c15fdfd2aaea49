#include "longspan/data/part_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/data/example_file.h"
#include "longspan/data/stage_encoders.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/choices.h"
#include "longspan/settings/data_settings.h"

namespace longspan {
namespace {

void add_to(std::optional<PackingReport>& sum, const PackingReport& part) {
  if (!sum) sum = PackingReport{.row_length = part.row_length};
  sum->rows_before += part.rows_before;
  sum->rows_after += part.rows_after;
  sum->tokens_before += part.tokens_before;
  sum->tokens_after += part.tokens_after;
  sum->num_dropped += part.num_dropped;
}

/// Whether the samples of all rows are packed best-fit.
bool packs_samples(const DataSettings& config, const Stage& stage) {
  return stage.rows == RowKind::kAnswer && (config.neat_packing || packs(config, stage));
}

DataSettings without_packing(DataSettings config) {
  config.packing = false;
  config.neat_packing = false;
  return config;
}

}  // namespace

bool encodes_in_parts(const Stage& stage) { return stage.rows != RowKind::kUnpairedPreference; }

class PartEncoder::Impl {
 public:
  Impl(const RowEncoding& of, const std::string& folder, ExampleTaker take)
      : of_(of),
        own_config_(packs_samples(of.config, of.stage) ? without_packing(of.config) : of.config),
        encoding_{own_config_,   of.stage, of.tokenizer, of.template_time,
                  of.vocab_size, bad_,     chats_},
        take_(std::move(take)) {
    encoding_.rest = &rest_;
    if (packs_samples(of.config, of.stage)) samples_.emplace(folder);
  }

  void add(const std::vector<Conversation>& rows) {
    if (rows.empty()) return;
    if (num_rows_ == 0) first_ = rows.front().source;
    num_rows_ += std::ssize(rows);
    if (have_pictures(rows)) encode_examples(of_, rows);  // throws
    add(of_.stage.encode(encoding_, rows));
  }

  EncodedExamples finish() {
    // An encoder of other stages does not look at the rest.
    rest_.is_last = true;
    if (sum_.packing) add(of_.stage.encode(encoding_, {}));
    sum_.chats = chats_.notes();
    sum_.left_out = bad_.settle(on_bad_row_of(of_.config), "the data", num_rows_);
    if (samples_) pack();
    if (num_examples_ == 0) {
      throw UserError(fmt::format("{}: there is no text in this row and the {} after it", first_,
                                  num_rows_ - 1));
    }
    return std::move(sum_);
  }

 private:
  void add(const EncodedExamples& part) {
    sum_.cut.add(part.cut);
    if (part.packing) add_to(sum_.packing, *part.packing);
    for (const Example& example : part.examples) {
      if (samples_) {
        lengths_.push_back(std::ssize(example.documents.front().input_ids));
        samples_->add(example);
      } else {
        pass_on(example);
      }
    }
  }

  void pack() {
    samples_->finish("");
    const ExampleFile samples(samples_->open());
    const auto sample = [&](int64_t i) { return std::move(samples.example(i).documents.front()); };
    for (const std::vector<int64_t>& row : best_fit(lengths_, of_.config.cutoff_len)) {
      pass_on(packed_example(row, sample, of_.config.neat_packing));
    }
    sum_.packing = report_of_packing(lengths_, of_.config.cutoff_len, num_examples_);
  }

  void pass_on(const Example& example) {
    ++num_examples_;
    take_(example);
  }

  const RowEncoding of_;
  const DataSettings own_config_;
  BadRows bad_;
  ChatReport chats_;
  BlockRest rest_;
  Encoding encoding_;
  ExampleTaker take_;
  EncodedExamples sum_;
  std::string first_;
  int64_t num_rows_ = 0, num_examples_ = 0;
  std::optional<ExampleFileWriter> samples_;
  std::vector<int64_t> lengths_;
};

PartEncoder::PartEncoder(const RowEncoding& encoding, const std::string& folder, ExampleTaker take)
    : impl_(std::make_unique<Impl>(encoding, folder, std::move(take))) {}

PartEncoder::~PartEncoder() = default;

void PartEncoder::add(const std::vector<Conversation>& rows) { impl_->add(rows); }

EncodedExamples PartEncoder::finish() { return impl_->finish(); }

}  // namespace longspan
