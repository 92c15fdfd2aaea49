#include "longspan/checkpoint/state_parts.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>

#include "longspan/base/user_error.h"
#include "longspan/checkpoint/safetensors.h"
#include "longspan/memory/counting_allocator.h"
#include "longspan/optim/adamw_8bit.h"
#include "longspan/testing/parameter_specs.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

/// A run of a parameter in which each number is its own index; with a master copy, if given.
StateSource run_of(const std::string& name, int64_t begin, int64_t end,
                   const at::Tensor& master = {}) {
  const at::Tensor values = at::arange(begin, end, at::kFloat);
  StateShard shard{name, begin, end, 7, {{"exp_avg", values}, {"exp_avg_sq", values * 2}}};
  if (master.defined()) shard.tensors["master"] = master;
  StateSource source{name, begin, end, {}, [shard] { return shard; }};
  for (const auto& [what, tensor] : shard.tensors) source.dtypes[what] = tensor.scalar_type();
  return source;
}

}  // namespace

TEST_CASE("training state: any cut is read back as any other") {
  const testing::TemporaryFolder place;
  fs::create_directory(place / kStateFolder);
  const StateSource rest = run_of("w", 1, 1000);
  write_state_part(place / state_part_name(1, 2), {part_of(rest, 333, 1000)});
  write_state_part(place / state_part_name(2, 2), {run_of("w", 0, 1), part_of(rest, 1, 333)});
  const StateReader reader(place.path);
  for (const auto& [begin, end] :
       {std::pair<int64_t, int64_t>{0, 1000}, {5, 6}, {0, 2}, {300, 999}}) {
    StateShard shard{"w", begin, end, 0, {}};
    shard.tensors["exp_avg_sq"] = at::empty({end - begin}, at::kFloat);
    reader.read(shard);
    CHECK(shard.num_steps == 7);
    CHECK(at::equal(shard.tensors["exp_avg_sq"], at::arange(begin, end, at::kFloat) * 2));
  }
}

TEST_CASE("training state: what is not there is an error, never zeros") {
  const testing::TemporaryFolder place;
  fs::create_directory(place / kStateFolder);
  write_state_part(place / state_part_name(1, 1), {run_of("w", 10, 20)});
  const StateReader reader(place.path);
  const auto read = [&](const std::string& name, const char* what, int64_t begin, int64_t end) {
    StateShard shard{name, begin, end, 0, {}};
    shard.tensors[what] = at::empty({end - begin}, at::kFloat);
    reader.read(shard);
  };
  CHECK_NOTHROW(read("w", "exp_avg", 10, 20));
  CHECK_THROWS_AS(read("w", "exp_avg", 9, 20), UserError);
  CHECK_THROWS_AS(read("w", "exp_avg", 10, 21), UserError);
  CHECK_THROWS_AS(read("w", "other", 10, 20), UserError);
  CHECK_THROWS_AS(read("v", "exp_avg", 10, 20), UserError);
  CHECK_THROWS_AS(reader.read_values("w", 10, 20), UserError);
}

TEST_CASE("training state: names that lie about their tensors are refused") {
  const auto complaint = [](const std::string& name, const at::Tensor& values) -> std::string {
    const testing::TemporaryFolder place;
    fs::create_directory(place / kStateFolder);
    const at::Tensor numbers = at::zeros({10});
    write_safetensors(
        place / state_part_name(1, 1),
        {{"exp_avg v 0 10", numbers}, {"steps v 0 10", at::ones({1}, at::kLong)}, {name, values}});
    try {
      const StateReader reader(place.path);
      StateShard shard{"w", 0, 10, 0, {{"exp_avg", numbers}}};
      reader.read(shard);
    } catch (const UserError& error) {
      return error.what();
    }
    return "(accepted)";
  };
  const auto says = [&](const std::string& name, const at::Tensor& values, const char* part) {
    const std::string message = complaint(name, values);
    INFO(message);
    return message.find(part) != std::string::npos;
  };
  CHECK(says("exp_avg w 0 10", at::zeros({9}), "should hold 10 numbers, and holds 9"));
  CHECK(says("exp_avg w 10 0", at::zeros({9}), "is not the name of a training state"));
  CHECK(says("exp_avg w -5 5", at::zeros({10}), "is not the name of a training state"));
  CHECK(says("exp_avg w 0 99999999999999999999", at::zeros({9}), "not the name"));
  CHECK(says("steps w 0 10", at::ones({1}), "should hold 1 numbers (I64), and holds 1 (F32)"));
  CHECK(says("steps w 0 10", at::ones({0}, at::kLong), "should hold 1 numbers"));
  CHECK(says("exp_avg w 0 10", at::zeros({10}), "holds no state of w"));
}

TEST_CASE("training state: values are the master's, else the weights'") {
  const testing::TemporaryFolder place;
  fs::create_directory(place / kStateFolder);
  const at::Tensor exact = at::rand({4, 5}), rounded = exact.to(at::kBFloat16);
  write_safetensors(place / "model.safetensors", {{"w", rounded}, {"v", exact}});
  write_state_part(place / state_part_name(1, 1),
                   {run_of("w", 0, 20, exact.flatten()), run_of("v", 0, 20)});
  const StateReader reader(place.path);
  CHECK(at::equal(reader.read_values("w", 3, 20), exact.flatten().narrow(0, 3, 17)));
  CHECK(at::equal(reader.read_values("v", 3, 20), exact.flatten().narrow(0, 3, 17)));
}

TEST_CASE("training state: values of a parameter that is a part of a stored tensor") {
  const testing::TemporaryFolder place;
  fs::create_directory(place / kStateFolder);
  const at::Tensor whole = at::rand({6, 5});
  write_safetensors(place / "model.safetensors", {{"whole", whole}});
  write_state_part(place / state_part_name(1, 1), {run_of("second", 0, 15)});
  const StateReader reader(place.path, {{"second", {"whole", 10, {}, {}}}});
  CHECK(at::equal(reader.read_values("second", 2, 15), whole.flatten().narrow(0, 12, 13)));
  CHECK(at::equal(reader.read_values("whole", 2, 15), whole.flatten().narrow(0, 2, 13)));
  CHECK_THROWS_WITH_AS(reader.read_values("second", 0, 21), doctest::Contains("no weights of"),
                       UserError);
}

TEST_CASE("training state: values of a matrix that lies in the files as columns of another") {
  const testing::TemporaryFolder place;
  fs::create_directory(place / kStateFolder);
  const at::Tensor stack = at::rand({2, 3, 5});  // two matrices [5, 3], each transposed
  const at::Tensor mixed = at::rand({4, 6});     // interleaved columns of three matrices [4, 2]
  write_safetensors(place / "model.safetensors", {{"stack", stack}, {"mixed", mixed}});
  write_state_part(place / state_part_name(1, 1), {run_of("turned", 0, 15)});
  const StateReader reader(place.path, {{"turned", {"stack", 15, {5, 3}, {1, 5}}},
                                        {"third", {"mixed", 2, {4, 2}, {6, 3}}},
                                        {"beyond", {"mixed", 3, {4, 2}, {6, 3}}}});
  const at::Tensor turned = stack[1].t().flatten(),
                   third = at::stack({mixed.select(1, 2), mixed.select(1, 5)}, 1).flatten();
  CHECK(at::equal(reader.read_values("turned", 0, 15), turned));
  CHECK(at::equal(reader.read_values("turned", 4, 11), turned.narrow(0, 4, 7)));
  CHECK(at::equal(reader.read_values("third", 1, 8), third.narrow(0, 1, 7)));
  CHECK_THROWS_WITH_AS(reader.read_values("beyond", 0, 8), doctest::Contains("no weights of"),
                       UserError);
  StateShard shard{"turned", 2, 9, 0, {}};
  shard.tensors["exp_avg"] = at::empty({7}, at::kFloat);
  shard.tensors["master"] = at::empty({7}, at::kFloat);
  reader.read(shard);
  CHECK(at::equal(shard.tensors["master"], turned.narrow(0, 2, 7)));
}

TEST_CASE("training state: saving and loading take one parameter's room beside the optimizer's") {
  constexpr int64_t kSize = 1 << 16, kNumParameters = 8;
  struct Kind {
    at::ScalarType dtype;
    bool in_8_bits, rounds;  // states in 8 bits; weights rounded
    int64_t of_saving;       // bytes a number of the largest parameter while saving
  };
  // Moments in fp32 are written without a copy.
  for (const Kind& kind :
       {Kind{at::kFloat, false, false, 0}, Kind{at::kFloat, false, true, 0},
        Kind{at::kBFloat16, false, false, 8}, Kind{at::kFloat, true, false, 8}}) {
    CAPTURE(kind.in_8_bits);
    CAPTURE(kind.rounds);
    CAPTURE(kind.of_saving);
    const testing::TemporaryFolder place;
    fs::create_directory(place / kStateFolder);
    const auto trained = [&](int steps) {
      std::vector<NamedTensor> parameters;
      std::unique_ptr<Optimizer> optimizer;
      at::manual_seed(1);
      for (int64_t i = 0; i < kNumParameters; ++i) {
        parameters.push_back(
            {fmt::format("w{}", i), at::randn({kSize}).to(kind.dtype).set_requires_grad(true)});
      }
      const std::vector<ParameterShard> shards =
          unsharded_parameters(parameters, testing::projections(parameters));
      if (kind.in_8_bits) {
        optimizer = std::make_unique<AdamW8bit>(shards, AdamWOptions{});
      } else {
        optimizer = std::make_unique<AdamW>(shards, AdamWOptions{});
      }
      for (int step = 0; step < steps; ++step) {
        for (auto& [name, tensor] : parameters) {
          tensor.mutable_grad() = at::randn({kSize}).to(kind.dtype);
        }
        optimizer->step(0.1);
      }
      return std::pair(std::move(parameters), std::move(optimizer));
    };
    const auto [values, optimizer] = trained(2);
    const auto [fresh_values, fresh] = trained(0);
    write_safetensors(place / "model.safetensors", values,
                      kind.rounds ? at::kBFloat16 : kind.dtype);
    constexpr int64_t kSmall = 4096;
    AllocationCounter counter(AllocationCounter::Of::kProcess);
    std::vector<StateSource> states = optimizer->state();
    for (size_t i = 0; kind.rounds && i < states.size(); ++i) {
      states[i] = with_master(states[i], values[i].tensor);
    }
    write_state_part(place / state_part_name(1, 1), states);
    CHECK(counter.peak_bytes() <= kind.of_saving * kSize + kSmall);
    counter.restart_peak();
    load_optimizer(StateReader(place.path), *fresh);
    CHECK(counter.peak_bytes() <= (4 + 4 + 4) * kSize + kSmall);
    for (size_t i = 0; i < values.size(); ++i) {
      CHECK(fresh_values[i].tensor.equal(values[i].tensor));
      const StateShard theirs = optimizer->state()[i].make(), ours = fresh->state()[i].make();
      CHECK(ours.num_steps == 2);
      for (const auto& [what, tensor] : theirs.tensors) {
        CHECK(ours.tensors.at(what).equal(tensor));
      }
    }
  }
}

}  // namespace longspan
