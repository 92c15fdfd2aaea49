// Compares reading in steps with reading the whole row at once, in fp64. Only rounding may differ.
#include "longspan/generation/cached_decoder.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <numeric>

#include "longspan/attention/block_kernel.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/generation/generate.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/small_model.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

testing::SmallModel small_config() {
  testing::SmallModel config;
  config.model_type = "llama";
  config.vocab_size = 61;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_layers = 2;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 4;
  config.max_position_embeddings = 2048;
  config.initializer_range = 0.4;
  config.norm_eps = 1e-3;
  return config;
}

std::vector<NamedTensor> parameters_of(const testing::SmallModel& config) {
  return random_parameters(config.config(), /*seed=*/3, at::kDouble);
}

std::vector<int32_t> tokens_of(int64_t length, int32_t begin) {
  std::vector<int32_t> tokens(length);
  for (int64_t i = 0; i < length; ++i) tokens[i] = static_cast<int32_t>((begin + 7 * i * i) % 61);
  return tokens;
}

/// Logits after the last token, with everything read at once. `spec` describes the model.
at::Tensor whole(const testing::SmallModel& config, const ModelSpec& spec,
                 const std::vector<int32_t>& tokens) {
  const auto attention = make_local(cpu_block_kernel());
  DecoderOptions options;
  options.gradient_checkpointing = false;
  Decoder decoder(spec, parameters_of(config), *attention, options);
  Batch batch;
  batch.packing = Packing::single(std::ssize(tokens));
  batch.tokens_T = at::tensor(std::vector<int64_t>(tokens.begin(), tokens.end()), at::kLong);
  batch.positions_T = at::arange(std::ssize(tokens), at::kLong);
  batch.num_positions = std::ssize(tokens);
  return decoder.logits(batch)[-1].detach();
}

at::Tensor whole(const testing::SmallModel& config, const std::vector<int32_t>& tokens) {
  return whole(config, config.spec(), tokens);
}

}  // namespace

TEST_CASE("cached decoder: steps of any size say what the whole row says, sequence by sequence") {
  const testing::SmallModel config = small_config();
  CachedDecoder decoder(config.spec(), parameters_of(config), 3, config.max_position_embeddings);
  // The long one needs several chunks, and its cache grows several times.
  const auto a = tokens_of(2 * CachedDecoder::kChunkTokens + 40, 1), b = tokens_of(9, 2);
  const auto first = [](const std::vector<int32_t>& tokens, int64_t count) {
    return std::vector<int32_t>(tokens.begin(), tokens.begin() + count);
  };
  at::Tensor logits = decoder.extend({{2, first(b, 4)}, {0, first(a, 1030)}});
  // fp64 sums of some hundred numbers in another order.
  constexpr double kTolerance = 1e-11;
  CHECK(testing::relative_error(logits[0], whole(config, first(b, 4))) < kTolerance);
  CHECK(testing::relative_error(logits[1], whole(config, first(a, 1030))) < kTolerance);
  // One token each, then several beside one.
  logits = decoder.extend({{0, {a[1030]}}, {2, {b[4]}}});
  CHECK(testing::relative_error(logits[0], whole(config, first(a, 1031))) < kTolerance);
  CHECK(testing::relative_error(logits[1], whole(config, first(b, 5))) < kTolerance);
  logits = decoder.extend({{0, {a[1031]}}, {2, {b[5], b[6], b[7], b[8]}}, {1, {5}}});
  CHECK(testing::relative_error(logits[0], whole(config, first(a, 1032))) < kTolerance);
  CHECK(testing::relative_error(logits[1], whole(config, b)) < kTolerance);
  CHECK(testing::relative_error(logits[2], whole(config, {5})) < kTolerance);
  // Forgotten tokens have no effect.
  decoder.truncate(0, 100);
  CHECK(decoder.tokens(0) == first(a, 100));
  logits = decoder.extend({{0, {9, 8}}});
  auto other = first(a, 100);
  other.insert(other.end(), {9, 8});
  CHECK(testing::relative_error(logits[0], whole(config, other)) < kTolerance);
}

TEST_CASE("cached decoder: a sequence is rotated as a row of its length, whatever it was before") {
  const testing::SmallModel config = small_config();
  ModelSpec spec = config.spec(), always_short;
  RopeScaling& scaling = std::get<SelfAttentionSpec>(spec.pattern.front().mixer).rotary->scaling;
  scaling.type = RopeScaling::Type::kLongrope;
  scaling.factor = 4.0;
  scaling.short_factors = {1.0, 1.5};
  scaling.long_factors = {2.0, 9.0};
  scaling.original_max_position_embeddings = 1000;
  always_short = spec;
  scaling.original_max_position_embeddings = 6;
  CachedDecoder decoder(spec, parameters_of(config), 2, config.max_position_embeddings);
  const auto a = tokens_of(8, 1), b = tokens_of(5, 2);
  const auto is_whole = [&](const at::Tensor& logits, const std::vector<int32_t>& tokens,
                            int64_t count) {
    const std::vector<int32_t> row(tokens.begin(), tokens.begin() + count);
    return testing::relative_error(logits, whole(config, spec, row)) < 1e-11;
  };
  CHECK(testing::relative_error(whole(config, always_short, a), whole(config, spec, a)) > 1e-3);
  at::Tensor logits = decoder.extend({{0, {a[0], a[1], a[2], a[3], a[4]}}, {1, {b[0], b[1]}}});
  CHECK(is_whole(logits[0], a, 5));
  CHECK(is_whole(logits[1], b, 2));
  CHECK(is_whole(decoder.extend({{0, {a[5]}}})[0], a, 6));
  // One sequence becomes long while the other stays short.
  logits = decoder.extend({{1, {b[2]}}, {0, {a[6]}}});
  CHECK(is_whole(logits[0], b, 3));
  CHECK(is_whole(logits[1], a, 7));
  logits = decoder.extend({{0, {a[7]}}, {1, {b[3], b[4]}}});
  CHECK(is_whole(logits[0], a, 8));
  CHECK(is_whole(logits[1], b, 5));
  CHECK(decoder.tokens(0) == a);
  // The long sequence becomes short again.
  decoder.truncate(0, 3);
  CHECK(is_whole(decoder.extend({{0, {a[3]}}})[0], a, 4));
}

TEST_CASE("generate: answers are those of each prompt alone, however many at a time") {
  testing::SmallModel config = small_config();
  config.max_position_embeddings = 40;
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < 7; ++i) prompts.push_back(tokens_of(3 + 5 * i, i));
  GenerationOptions options;
  options.max_new_tokens = 20;
  options.end_tokens = {0, 1, 2};
  for (const bool do_sample : {false, true}) {
    options.sampling.do_sample = do_sample;
    std::vector<std::vector<Answer>> runs;
    for (const int64_t num_sequences : {1, 3}) {
      CachedDecoder decoder(config.spec(), parameters_of(config), num_sequences,
                            config.max_position_embeddings);
      std::vector<Answer> answers(prompts.size());
      std::vector<std::vector<int32_t>> streamed(prompts.size());
      GenerationListener listener;
      listener.token = [&](int64_t prompt, int32_t token) { streamed[prompt].push_back(token); };
      listener.answer = [&](int64_t prompt, Answer answer) { answers[prompt] = answer; };
      generate(decoder, prompts, options, listener);
      for (size_t i = 0; i < prompts.size(); ++i) CHECK(answers[i].tokens == streamed[i]);
      runs.push_back(answers);
    }
    for (size_t i = 0; i < prompts.size(); ++i) {
      CHECK(runs[0][i].tokens == runs[1][i].tokens);
      CHECK(runs[0][i].reason == runs[1][i].reason);
    }
    if (do_sample) continue;
    // Checks each token against the whole row.
    std::vector<int32_t> row = prompts[1];
    for (const int32_t token : runs[0][1].tokens) {
      CHECK(whole(config, row).argmax().item<int64_t>() == token);
      row.push_back(token);
    }
    const Answer& full = runs[0].back();  // 33 tokens, and 7 or an end token
    CHECK((full.reason == FinishReason::kStop ||
           (full.reason == FinishReason::kContext && full.tokens.size() == 8)));
  }
}

TEST_CASE("generate: an interrupt keeps what was said, and what was read") {
  const testing::SmallModel config = small_config();
  CachedDecoder decoder(config.spec(), parameters_of(config), 1, config.max_position_embeddings);
  GenerationOptions options;
  Answer answer{{}, FinishReason::kStop};
  int64_t told = 0;
  GenerationListener listener;
  listener.token = [&](int64_t, int32_t) { ++told; };
  listener.answer = [&](int64_t, Answer made) { answer = made; };
  listener.go_on = [&] { return told < 5; };
  const auto prompt = tokens_of(12, 4);
  generate(decoder, {prompt}, options, listener);
  CHECK(answer.reason == FinishReason::kInterrupted);
  CHECK(answer.tokens.size() == 5);
  CHECK(decoder.tokens(0).size() == prompt.size() + 4);
}

}  // namespace longspan
