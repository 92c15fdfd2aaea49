#include "longspan/session/session.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/config/config.h"
#include "longspan/generation/cached_decoder.h"
#include "longspan/testing/session_ranks.h"
#include "longspan/testing/small_model.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

constexpr int64_t kVocabulary = 40, kTokens = 23;
constexpr int kSteps = 3;
constexpr double kRate = 1e-2;

ModelConfig small_model() {
  testing::SmallModel model;
  model.model_type = "qwen2";
  model.architecture = "Qwen2ForCausalLM";
  model.vocab_size = kVocabulary;
  model.hidden_size = 24;
  model.intermediate_size = 40;
  model.num_layers = 2;
  model.num_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim = 6;
  model.max_position_embeddings = 64;
  ModelConfig config = model.config();
  config.json = R"({"model_type": "qwen2"})";
  return config;
}

ModelParts parts_of_model() {
  const ModelConfig config = small_model();
  return {config, random_parameters(config, 1, at::kFloat)};
}

Config config_for(int sequence_parallel_size, int64_t zero_stage = 0) {
  Config config;
  config.model.device = "cpu";
  config.data.cutoff_len = 64;
  config.parallel.sequence_parallel_size = sequence_parallel_size;
  config.memory.zero_stage = zero_stage;
  return config;
}

/// Two documents a row, with a weight for each token.
std::vector<Sample> samples_of(int64_t step) {
  std::vector<Sample> samples;
  for (const int64_t length : {kTokens, kTokens / 2}) {
    Sample sample;
    std::vector<double> weights;
    for (int64_t i = 0; i < length; ++i) {
      sample.input_ids.push_back(static_cast<int32_t>((7 * i + 11 * step + length) % kVocabulary));
      weights.push_back(0.1 * static_cast<double>(i % 5));
    }
    sample.labels = sample.input_ids;
    sample.columns["weight"] = {.values = at::tensor(weights, at::kDouble)};
    samples.push_back(std::move(sample));
  }
  return samples;
}

void on_ranks(int num_ranks, const Config& config, const std::function<void(Session&)>& body) {
  testing::on_session_ranks(num_ranks, config, parts_of_model(), body);
}

double trained_step(Session& session, const LossOfCaller* loss) {
  const std::vector<Row> rows{session.row(samples_of(session.step()))};
  const RowLosses losses = loss != nullptr
                               ? session.forward_backward(rows, *loss)
                               : session.forward_backward(rows, session.count(rows).weight);
  const double value = session.sum_up(losses).loss();
  session.clip(session.reduce(), 1.0);
  session.update(kRate);
  return value;
}

std::vector<double> losses_of(int num_ranks, const Config& config, const LossOfCaller* loss) {
  std::vector<double> losses;
  on_ranks(num_ranks, config, [&](Session& session) {
    for (int step = 0; step < kSteps; ++step) {
      const double value = trained_step(session, loss);
      if (session.mesh().world.rank() == 0) losses.push_back(value);
    }
  });
  return losses;
}

using testing::check_close;

TEST_CASE("session: a loss of the caller's is the same on one rank and on several") {
  const LossOfCaller weighted{.of_row = [](const LossInput& input) {
    const at::Tensor all_T = input.row.local.columns.at("weight").values;
    return -(all_T.index_select(0, input.places_L) * input.logprobs_L).sum() / 6.0;
  }};
  // Not a sum over labels: needs the whole row's sum before the square.
  const LossOfCaller squared{
      .reads = LossOfCaller::Reads::kHiddenStates,
      .of_row =
          [](const LossInput& input) {
            return input.sum_over_row(input.hidden_LD.to(at::kDouble).sum()).square();
          },
      .whole_row = true};
  for (const LossOfCaller* loss : {&weighted, &squared}) {
    const std::vector<double> alone = losses_of(1, config_for(1), loss);
    CHECK(alone.front() != alone.back());
    for (const int num_ranks : {2, 3}) {
      check_close(losses_of(num_ranks, config_for(num_ranks), loss), alone);
    }
    check_close(losses_of(2, config_for(2, /*zero_stage=*/3), loss), alone);
  }
}

TEST_CASE("session: the mean of -log p, written as a loss of the caller's, is that of stage sft") {
  const double num_labels = kTokens - 1 + kTokens / 2 - 1;
  const LossOfCaller mean{
      .of_row = [&](const LossInput& input) { return -input.logprobs_L.sum() / num_labels; }};
  check_close(losses_of(1, config_for(1), &mean), losses_of(1, config_for(1), nullptr));
}

TEST_CASE("session: a checkpoint continues with the same bits, on any number of ranks") {
  const testing::TemporaryFolder place;
  std::vector<double> whole, resumed;
  std::string checkpoint;
  on_ranks(1, config_for(1), [&](Session& session) {
    for (int step = 0; step < kSteps; ++step) {
      whole.push_back(trained_step(session, nullptr));
      if (step == 0) checkpoint = session.save_checkpoint(place.path, "where the rows are");
    }
  });
  on_ranks(1, config_for(1), [&](Session& session) {
    CHECK(session.load_checkpoint(checkpoint) == "where the rows are");
    CHECK(session.step() == 1);
    while (session.step() < kSteps) resumed.push_back(trained_step(session, nullptr));
  });
  CHECK(resumed == std::vector<double>(whole.begin() + 1, whole.end()));
  resumed.clear();
  on_ranks(2, config_for(2, /*zero_stage=*/3), [&](Session& session) {
    session.load_checkpoint(checkpoint);
    while (session.step() < kSteps) {
      const double loss = trained_step(session, nullptr);
      if (session.mesh().world.rank() == 0) resumed.push_back(loss);
    }
  });
  check_close(resumed, {whole.begin() + 1, whole.end()});
}

TEST_CASE("session: answers are those of the saved model, also where parameters are sharded") {
  const testing::TemporaryFolder place;
  const std::vector<std::vector<int32_t>> prompts{{1, 2, 3}, {5}, {8, 9, 10, 11}};
  GenerationOptions options;
  options.max_new_tokens = 6;
  std::vector<std::vector<int32_t>> expected;
  on_ranks(1, config_for(1), [&](Session& session) {
    trained_step(session, nullptr);
    session.save(place.path);
    for (const Answer& answer : session.generate(prompts, options)) {
      CHECK(answer.reason == FinishReason::kLength);
      expected.push_back(answer.tokens);
    }
    CHECK_THROWS_WITH_AS(session.generate({{}}, options), doctest::Contains("prompt 0 has 0"),
                         UserError);
  });
  CachedDecoder decoder(small_model().spec, load_parameters(place.path, small_model(), at::kFloat),
                        1, 64);
  std::vector<std::vector<int32_t>> saved(prompts.size());
  generate(decoder, prompts, options,
           {.token = {},
            .answer = [&](int64_t prompt, Answer answer) { saved[prompt] = answer.tokens; },
            .go_on = {}});
  CHECK(expected == saved);
  std::vector<int> num_equal(2);
  on_ranks(2, config_for(2, /*zero_stage=*/3), [&](Session& session) {
    trained_step(session, nullptr);
    const std::vector<Answer> answers = session.generate(prompts, options);
    for (size_t i = 0; i < answers.size(); ++i) {
      num_equal[session.mesh().world.rank()] += answers[i].tokens == expected[i] ? 1 : 0;
    }
  });
  CHECK(num_equal == std::vector<int>{3, 3});
}

TEST_CASE("session: ranks that divide prompts answer in rounds, and a stop of one ends them all") {
  std::vector<std::vector<int32_t>> prompts;
  for (int32_t i = 0; i < 24; ++i) prompts.push_back({i, 3, 5});
  GenerationOptions options;
  options.sampling.do_sample = true;
  options.max_new_tokens = 3;
  std::vector<std::vector<int32_t>> expected;
  on_ranks(1, config_for(1), [&](Session& session) {
    for (const Answer& answer : session.generate(prompts, options)) {
      expected.push_back(answer.tokens);
    }
  });
  std::vector<int> num_equal(2), num_interrupted(2);
  on_ranks(2, config_for(1), [&](Session& session) {
    const int rank = session.mesh().world.rank();
    const std::vector<Answer> all = session.generate(prompts, options, /*num_at_a_time=*/1,
                                                     /*go_on=*/{}, /*on_all_ranks=*/true);
    for (size_t i = 0; i < all.size(); ++i) num_equal[rank] += all[i].tokens == expected[i] ? 1 : 0;
    const std::vector<Answer> some =
        session.generate(prompts, options, /*num_at_a_time=*/1, [rank] { return rank == 0; }, true);
    for (const Answer& answer : some) {
      num_interrupted[rank] += answer.reason == FinishReason::kInterrupted ? 1 : 0;
    }
  });
  CHECK(num_equal == std::vector<int>{24, 24});
  // Rank 0 has answered its prompts of the first round.
  CHECK(num_interrupted == std::vector<int>{20, 20});
}

TEST_CASE("session: sums that start in the last row's backward change no bit") {
  // Without stage 2, ranks may have different numbers of rows, or none.
  const auto weights = [](const Config& config, const std::vector<int>& num_rows, bool early) {
    std::vector<at::Tensor> of_rank_0;
    on_ranks(4, config, [&](Session& session) {
      const int rank = session.mesh().world.rank();
      for (int64_t step = 0; step < kSteps; ++step) {
        std::vector<Row> rows;
        for (int i = 0; i < num_rows[rank]; ++i) {
          rows.push_back(session.row(samples_of(7 * step + 3 * rank + i)));
        }
        const double weight = session.start_count(rows)().weight;
        session.sum_up(session.forward_backward(rows, weight, {}, early));
        session.clip(session.reduce(), 0.1);
        session.update(kRate);
      }
      GenerationOptions one_token;
      one_token.max_new_tokens = 1;
      session.generate({{1, 2, 3}}, one_token);  // all ranks are still in step
      if (rank == 0) {
        for (const auto& [name, tensor] : session.parameters()) {
          of_rank_0.push_back(tensor.detach().clone());
        }
      }
    });
    return of_rank_0;
  };
  struct Case {
    int64_t stage;
    int shard_size;
    bool bf16;
  };
  for (const auto& [stage, shard_size, bf16] :
       {Case{0, 4, false}, Case{1, 4, false}, Case{1, 2, true}, Case{2, 2, true}}) {
    CAPTURE(stage);
    CAPTURE(shard_size);
    Config config = config_for(1, stage);
    if (stage > 0) config.memory.zero_shard_size = shard_size;
    config.optimization.bf16 = bf16;
    const std::vector<int> num_rows = stage < 2 ? std::vector{2, 1, 1, 0} : std::vector{2, 2, 2, 2};
    const std::vector<at::Tensor> early = weights(config, num_rows, true),
                                  late = weights(config, num_rows, false);
    REQUIRE(early.size() == late.size());
    for (size_t i = 0; i < early.size(); ++i) CHECK(early[i].equal(late[i]));
  }
}

TEST_CASE("session: evaluation and log-probabilities agree with the loss") {
  on_ranks(1, config_for(1), [&](Session& session) {
    const std::vector<Row> rows{session.row(samples_of(0))};
    const at::Tensor logprobs_L = session.label_logprobs(rows[0]);
    const double weight = session.count(rows).weight;
    CHECK(static_cast<double>(logprobs_L.numel()) == weight);
    std::vector<Example> examples;
    for (const Sample& sample : samples_of(0)) {
      examples.emplace_back().documents.push_back(sample);
    }
    const ExamplesInMemory set(std::move(examples));
    const auto result = session.evaluate(set, /*batch_size=*/2);
    REQUIRE(result);
    CHECK(result->loss ==
          doctest::Approx(-logprobs_L.sum().item<double>() / weight).epsilon(1e-12));
    const double loss = session.sum_up(session.forward_backward(rows, weight)).loss();
    CHECK(result->loss == doctest::Approx(loss).epsilon(1e-12));
    session.drop();
  });
}

TEST_CASE("session: parameters in memory are checked against the model") {
  ModelParts parts = parts_of_model();
  const auto complaint = [&] {
    try {
      Session session(config_for(1), {.model = &parts});
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(complaint().empty());
  parts.parameters.push_back({"model.extra", at::zeros({2})});
  CHECK(complaint().find("model.extra") != std::string::npos);
  parts.parameters.pop_back();
  parts.parameters.back().tensor = at::zeros({2});
  CHECK(complaint().find("wanted is") != std::string::npos);
  parts.parameters.pop_back();
  CHECK(complaint().find("is missing") != std::string::npos);
}

}  // namespace
}  // namespace longspan
