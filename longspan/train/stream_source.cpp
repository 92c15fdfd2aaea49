#include "longspan/train/stream_source.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "longspan/base/fnv1a.h"
#include "longspan/data/example_file.h"
#include "longspan/data/packed_bytes.h"
#include "longspan/data/run_tokenizer.h"
#include "longspan/data/streamed_examples.h"
#include "longspan/liveness/agreement.h"
#include "longspan/memory/transfer.h"
#include "longspan/registers/stage.h"
#include "longspan/saving/training_state.h"
#include "longspan/settings/method_settings.h"
#include "longspan/settings/model_settings.h"
#include "longspan/settings/optimization_settings.h"
#include "longspan/train/encoded_data.h"
#include "longspan/train/nonfinite.h"

namespace longspan {
namespace {

/// Returns rank 0's text on all ranks.
std::string sent_to_all(const std::string& text, const Group& world, at::Device device) {
  if (world.size() == 1) return text;
  const at::Tensor size =
      sent_to(at::tensor({static_cast<int64_t>(text.size())}, at::kLong), device);
  world.broadcast_(size);
  at::Tensor bytes = at::empty({size.item<int64_t>()}, at::kByte);
  if (world.rank() == 0) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  bytes = sent_to(bytes, device);
  world.broadcast_(bytes);
  bytes = bytes.cpu();
  return {static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()};
}

class StreamSource final : public ExampleSource {
 public:
  StreamSource(const OptimizationSettings& optimization, const Session& session, Workers& workers)
      : mesh_(session.mesh()),
        device_(session.device()),
        notices_(workers.notices()),
        num_rows_(optimization.per_device_train_batch_size),
        num_micro_batches_(optimization.gradient_accumulation_steps) {}

  /// On rank 0, before the first step.
  void read(const RowSettings& config, const ModelConfig& model, const LocalTime& template_time) {
    tokenizer_.emplace(run_tokenizer(config.model.model_name_or_path, config.data));
    pictures_ = picture_encoding(config, model, *tokenizer_);
    job_.emplace(StreamJob{.config = config.data,
                           .stage = stage_of(config.method),
                           .tokenizer = *tokenizer_,
                           .template_time = template_time,
                           .vocab_size = model.spec.vocab_size,
                           .seed = config.seed,
                           .shuffles = !config.method.disable_shuffling,
                           .pictures = pictures_ ? &*pictures_ : nullptr});
  }

  std::optional<int64_t> num_batches() const override { return std::nullopt; }

  bool prepare(int64_t /*step*/) override {
    std::vector<std::string> micro_batches(num_micro_batches_);
    all_or_none_patiently(mesh_.world, notices_, [&] {
      if (mesh_.world.rank() != 0) return;
      if (!examples_) examples_.emplace(*job_, StreamPlace::from(state_));
      for (std::string& examples : micro_batches) examples = taken();
    });
    own_.clear();
    const int64_t begin = mesh_.data.rank() * num_rows_;
    for (std::string& text : micro_batches) {
      text = sent_to_all(text, mesh_.world, device_);
      UnpackedBytes from(text);
      state_ = from.next_text();
      std::vector<ExamplePointer>& own = own_.emplace_back();
      for (int64_t i = 0; i < begin + num_rows_; ++i) {
        const std::string_view text_of_one = from.next_text();
        if (i < begin) continue;
        Example example = unpack_example(text_of_one);
        example.number = kUnnumbered;
        own.push_back(std::make_shared<const Example>(std::move(example)));
      }
      text.clear();
    }
    return true;
  }

  DrawnExamples next(int64_t /*epoch*/, int64_t batch) override {
    const std::vector<ExamplePointer>& own = own_.at(batch % num_micro_batches_);
    return {.examples = own, .pattern = own.front()};
  }

  std::string summary() const override {
    return examples_ ? fmt::format("{}", fmt::join(examples_->report(), "\n")) : "";
  }
  std::string state() const override { return state_; }
  void resume(const std::string& state) override { state_ = StreamPlace::from(state).text(); }

 private:
  /// Returns the place after the next micro-batch of all groups, and its examples, as bytes.
  std::string taken() {
    PackedBytes examples, all;
    std::vector<std::string> packed;
    for (int64_t i = 0; i < num_rows_ * mesh_.data.size(); ++i) {
      const StreamedExamples::Drawn drawn = examples_->next();
      state_ = drawn.after.text();
      examples.clear();
      pack(drawn.example, examples);
      packed.push_back(examples.bytes());
    }
    all.add_text(state_);
    for (const std::string& example : packed) all.add_text(example);
    return all.bytes();
  }

  const Mesh& mesh_;
  at::Device device_;
  Notices& notices_;
  int64_t num_rows_, num_micro_batches_;  // num_rows_: of a group in a micro-batch
  std::string state_ = StreamPlace().text();
  std::vector<std::vector<ExamplePointer>> own_;  // of the step, by micro-batch
  std::optional<Tokenizer> tokenizer_;
  std::optional<PictureEncoding> pictures_;
  std::optional<StreamJob> job_;
  std::optional<StreamedExamples> examples_;  // from the first step on
};

}  // namespace

std::string fingerprint_of_stream(const std::vector<std::pair<std::string, std::string>>& keys) {
  std::string text;
  for (const auto& [key, value] : keys) text += fmt::format("{}={}\n", key, value);
  return fmt::format("{}{:016x}", kStreamedRows, fnv1a(text));
}

std::unique_ptr<ExampleSource> stream_source(const RowSettings& config,
                                             const OptimizationSettings& optimization,
                                             const LocalTime& template_time, const Session& session,
                                             Workers& workers) {
  auto source = std::make_unique<StreamSource>(optimization, session, workers);
  all_or_none(workers.world(), [&] {
    if (!workers.is_main()) return;
    source->read(config, session.model(), template_time);
  });
  return source;
}

}  // namespace longspan
