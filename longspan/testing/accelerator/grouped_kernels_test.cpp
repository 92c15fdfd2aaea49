// Kernels for all experts at once, as a GPU starts them: their reads and writes, also through a
// table of addresses, and that the host never waits.
#include "longspan/testing/accelerator/grouped_kernels.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <functional>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "longspan/layers/experts.h"
#include "longspan/testing/accelerator/simulated_kernels.h"
#include "longspan/testing/accelerator/streams_for_tests.h"

namespace longspan::testing::accelerator {
namespace {

constexpr int64_t kRows = 50, kHidden = 16, kNumExperts = 4, kExpertSize = 24, kChosen = 2;

struct GivenExperts {
  std::vector<ExpertMlp> experts{kNumExperts};
  at::Tensor x, dout;
  Routing routing;

  GivenExperts() {
    const auto random = [](at::IntArrayRef sizes) {
      return at::randn(sizes, at::device(at::kCPU)).to(at::kBFloat16);
    };
    const auto linear = [&](int64_t outputs, int64_t inputs) {
      Linear layer;
      layer.weight = random({outputs, inputs}).to(at::kFloat).requires_grad_(true);
      layer.bias = random({outputs}).to(at::kFloat).requires_grad_(true);
      return layer;
    };
    for (ExpertMlp& expert : experts) {
      expert.gate_proj = linear(kExpertSize, kHidden);
      expert.up_proj = linear(kExpertSize, kHidden);
      expert.down_proj = linear(kHidden, kExpertSize);
    }
    x = random({kRows, kHidden});
    dout = random({kRows, kHidden});
    // The last expert gets no rows.
    std::tie(routing.weights_CK, routing.experts_CK) =
        at::rand({kRows, kNumExperts - 1}, at::device(at::kCPU)).topk(kChosen, 1);
  }
  GivenExperts on(at::Device where) const {
    GivenExperts there = *this;
    for (ExpertMlp& expert : there.experts) {
      for (Linear* linear : expert.linears()) {
        for (at::Tensor* x : {&linear->weight, &linear->bias}) {
          *x = x->detach().to(where, x->scalar_type(), false, true).requires_grad_(true);
        }
      }
    }
    for (at::Tensor* x :
         {&there.x, &there.dout, &there.routing.weights_CK, &there.routing.experts_CK}) {
      *x = x->to(where);
    }
    return there;
  }
  int64_t rows_of_pass = 0;

  Experts layer() const {
    MixtureOfExpertsSpec spec;
    spec.num_experts = kNumExperts;
    spec.experts_per_token = kChosen;
    spec.expert_size = kExpertSize;
    spec.bias = true;
    Experts all(spec, experts, /*exchange=*/nullptr);
    all.cast_for_pass(rows_of_pass, x.options());
    return all;
  }
  at::Tensor forward() const {
    at::Tensor sum = at::zeros(x.sizes(), x.options().dtype(at::kFloat));
    const Experts all = layer();
    all.add(sum, {routing, all.dispatch(x, routing, nullptr)}, x, {0, kRows},
            all.forward_room(kRows, x.options()));
    return sum;
  }
  std::vector<at::Tensor> backward() const {
    at::Tensor dx = at::zeros(x.sizes(), x.options().dtype(at::kFloat));
    const Experts all = layer();
    const at::Tensor dweights = all.backward(dx, {routing, all.dispatch(x, routing, nullptr)}, dout,
                                             x, {0, kRows}, all.backward_room(kRows, x.options()));
    std::vector<at::Tensor> results{dx, dweights}, parameters;
    all.append_parameters_to(parameters);
    for (const at::Tensor& parameter : parameters) {
      if (parameter.defined()) results.push_back(parameter.grad());
    }
    return results;
  }
};

TEST_CASE(
    "grouped kernels: what one expert after the other gives, and the host waits for nothing") {
  install();
  const cuda::WithKernels lent(simulated_kernels(0));
  at::manual_seed(5);
  const GivenExperts given;
  std::vector<at::Tensor> expected;
  {
    const cuda::WithoutKernels without;
    const GivenExperts here = given.on(at::kCPU);
    expected = here.backward();
    expected.insert(expected.begin(), here.forward());
  }
  const GivenExperts there = given.on(device());
  Machine::get().restart_counters();
  const at::Tensor sum = there.forward();
  std::vector<at::Tensor> made = there.backward();
  made.insert(made.begin(), sum);
  const Counters counters = Machine::get().counters();
  CHECK(counters.host_syncs == 0);
  CHECK(counters.launches_of.at("grouped_rows_f") == 2 * 2 + 1);
  CHECK(counters.launches_of.at("grouped_rows_transposed_f") == 2);
  CHECK(counters.launches_of.at("grouped_matrices") == 3);
  REQUIRE(made.size() == expected.size());
  for (size_t i = 0; i < made.size(); ++i) {
    CAPTURE(i);
    // Each element has some eight bf16 roundings in each of the two results, up to 2^-9 of it each,
    // with independent signs: sqrt(2 * 8) 2^-9.
    const at::Tensor exact = expected[i].to(at::kDouble);
    CHECK((made[i].cpu().to(at::kDouble) - exact).norm().item<double>() <=
          0x1p-7 * exact.norm().item<double>());
  }
}

TEST_CASE("grouped kernels: matrices in fp32 are cast once for the gemms of a pass") {
  install();
  const cuda::WithKernels lent(simulated_kernels(0));
  at::manual_seed(7);
  const GivenExperts given;
  const auto results = [&](int64_t rows_of_pass) {
    GivenExperts there = given.on(device());
    there.rows_of_pass = rows_of_pass;
    Machine::get().restart_counters();
    std::vector<at::Tensor> all = there.backward();
    const Counters counters = Machine::get().counters();
    CHECK(counters.host_syncs == 0);
    const auto launches = [&](const char* name) {
      const auto found = counters.launches_of.find(name);
      return found == counters.launches_of.end() ? 0 : found->second;
    };
    const bool casts = rows_of_pass > 0;
    CHECK(launches("cast_matrices") == (casts ? 3 : 0));
    CHECK(launches("grouped_rows_f") == (casts ? 0 : 2));
    CHECK(launches("grouped_rows_b") == (casts ? 2 : 0));
    CHECK(launches("grouped_rows_transposed_b") == (casts ? 2 : 0));
    return all;
  };
  const std::vector<at::Tensor> read = results(0), cast = results(1 << 20);
  for (size_t i = 0; i < read.size(); ++i) {
    CAPTURE(i);
    CHECK(cast[i].cpu().equal(read[i].cpu()));
  }
}

TEST_CASE("grouped kernels: what they find through a table takes part in races") {
  install();
  const cuda::WithKernels lent(simulated_kernels(0));
  at::manual_seed(6);
  const GivenExperts there = GivenExperts().on(device());
  const auto fault_of = [](const std::function<void()>& run) -> std::optional<Fault> {
    try {
      run();
    } catch (const FaultError& error) {
      return error.fault;
    }
    return std::nullopt;
  };
  const c10::Stream side = another_stream();
  wait(side, main_stream());
  at::Tensor sum;
  on(side, [&] { sum = there.forward(); });
  // A weight that a kernel still reads, of an expert with rows; and that of the expert without.
  const auto change = [&](int64_t expert) {
    there.experts[static_cast<size_t>(expert)].up_proj.weight.detach().fill_(1);
  };
  CHECK((fault_of([&] { change(0); }) == Fault::kRace));
  CHECK((fault_of([&] { change(kNumExperts - 1); }) == std::nullopt));
  wait(main_stream(), side);
  CHECK((fault_of([&] { change(0); }) == std::nullopt));
  std::vector<at::Tensor> gradients;
  wait(side, main_stream());
  on(side, [&] { gradients = there.backward(); });
  CHECK((fault_of([&] { gradients.at(2).add_(1); }) == Fault::kRace));
  wait(main_stream(), side);
  CHECK((fault_of([&] { gradients.at(2).add_(1); }) == std::nullopt));
}

}  // namespace
}  // namespace longspan::testing::accelerator
