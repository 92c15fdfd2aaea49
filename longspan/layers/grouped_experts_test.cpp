// Compares all experts at once with one after the other, each in bf16, and both with fp64. Without
// a GPU, the kernels run as ordinary functions.
#include "longspan/layers/grouped_experts.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "longspan/layers/experts.h"
#include "longspan/spec/expert_casts.h"
#include "longspan/testing/gpu_check.h"

namespace longspan {
namespace {

using testing::AnyKernels;
using testing::on_gpu;
using testing::wide;

constexpr int64_t kRows = 90, kHidden = 40;

MixtureOfExpertsSpec experts_spec() {
  MixtureOfExpertsSpec spec;
  spec.num_experts = 5;
  spec.experts_per_token = 3;
  spec.expert_size = 24;
  return spec;
}

struct Kind {
  MixtureOfExpertsSpec spec = experts_spec();
  at::ScalarType held = at::kFloat;  // the dtype of parameters
  bool adapters = false;             // with adapters, and frozen matrices
};

std::vector<Kind> kinds() {
  std::vector<Kind> all(4);
  all[1].held = at::kBFloat16;
  all[2].spec.stacked = all[2].spec.bias = true;
  all[2].spec.activation = ClampedSwiglu{.limit = 2.0};
  all[3].spec.activation = Geglu{};
  all[3].held = at::kBFloat16;
  all[3].adapters = true;
  return all;
}

/// Both have parameters with the same numbers, and their own gradients.
Linear linear_of(const Linear& like, at::ScalarType dtype) {
  Linear layer = like;
  for (at::Tensor* x : {&layer.weight, &layer.bias, &layer.lora_a, &layer.lora_b}) {
    if (!x->defined()) continue;
    const at::ScalarType held = dtype == at::kDouble ? dtype : x->scalar_type();
    *x = x->detach()
             .to(held, /*non_blocking=*/false, /*copy=*/true)
             .requires_grad_(x->requires_grad());
  }
  return layer;
}

std::vector<ExpertMlp> weights_of(const std::vector<ExpertMlp>& like, at::ScalarType dtype) {
  std::vector<ExpertMlp> experts = like;
  for (ExpertMlp& expert : experts) {
    for (Linear* linear : expert.linears()) *linear = linear_of(*linear, dtype);
  }
  return experts;
}

std::vector<ExpertMlp> random_experts(const Kind& kind) {
  const auto parameter = [](at::IntArrayRef sizes, at::ScalarType dtype, bool trained) {
    // Numbers that are exact in bf16, so that all versions multiply by the same.
    return (at::randn(sizes, on_gpu(at::kDouble)) / 5)
        .to(at::kBFloat16)
        .to(dtype)
        .requires_grad_(trained);
  };
  const auto linear = [&](int64_t outputs, int64_t inputs) {
    Linear layer;
    layer.weight = parameter({outputs, inputs}, kind.held, !kind.adapters);
    if (kind.spec.bias) layer.bias = parameter({outputs}, kind.held, true);
    if (kind.adapters) {
      layer.lora_a = parameter({8, inputs}, at::kFloat, true);
      layer.lora_b = parameter({outputs + 16, 8}, at::kFloat, true);
      layer.lora_b_begin = 8;  // rows of a B that layers with the same A share
      layer.lora_scale = 2.0;
    }
    return layer;
  };
  const int64_t I = kind.spec.expert_size;
  std::vector<ExpertMlp> experts(static_cast<size_t>(kind.spec.num_experts));
  for (ExpertMlp& expert : experts) {
    if (kind.spec.stacked) {
      expert.gate_up_proj = linear(2 * I, kHidden);
    } else {
      expert.gate_proj = linear(I, kHidden);
      expert.up_proj = linear(I, kHidden);
    }
    expert.down_proj = linear(kHidden, I);
  }
  return experts;
}

/// An exchange in which other processes seem to send all rows.
class ToItself : public ExpertExchange {
 public:
  class Routes : public ExpertRoutes {
   public:
    explicit Routes(std::vector<int64_t> numbers) : numbers_(std::move(numbers)) {}
    const std::vector<int64_t>& leaving() const override { return numbers_; }
    const std::vector<int64_t>& counts() const override { return numbers_; }
    const std::vector<int64_t>& numbers() const override { return numbers_; }
    std::vector<at::Tensor> to_experts(const std::vector<at::Tensor>& x_R) const override {
      return copies(x_R);
    }
    std::vector<at::Tensor> back(const std::vector<at::Tensor>& y_S) const override {
      return copies(y_S);
    }

   private:
    static std::vector<at::Tensor> copies(std::vector<at::Tensor> tensors) {
      for (at::Tensor& x : tensors) x = x.clone();
      return tensors;
    }

    std::vector<int64_t> numbers_;
  };

  ExpertRange here(int64_t num_experts) const override { return {0, num_experts}; }
  std::unique_ptr<ExpertRoutes> open(const at::Tensor& counts_E) override {
    const at::Tensor counts = counts_E.cpu();
    const auto* const first = counts.const_data_ptr<int64_t>();
    return open_again({first, first + counts.numel()});
  }
  std::unique_ptr<ExpertRoutes> open_again(std::vector<int64_t> numbers) override {
    return std::make_unique<Routes>(std::move(numbers));
  }
};

/// The rows of the experts. Expert 3 gets none.
struct Rows {
  at::Tensor x = testing::random({kRows, kHidden}, at::kBFloat16, true),
             dout = testing::random({kRows, kHidden}, at::kBFloat16, true);
  Routing routing;

  explicit Rows(const MixtureOfExpertsSpec& spec) {
    at::Tensor scores = at::rand({kRows, spec.num_experts}, on_gpu(at::kFloat));
    scores.select(1, 3).fill_(-1);
    std::tie(routing.weights_CK, routing.experts_CK) = scores.topk(spec.experts_per_token, 1);
    routing.weights_CK = routing.weights_CK.to(at::kBFloat16).to(at::kFloat).contiguous();
  }
};

/// All results of the experts.
std::vector<at::Tensor> results(const Kind& kind, std::vector<ExpertMlp> weights, const Rows& rows,
                                at::ScalarType dtype, ExpertExchange* exchange = nullptr,
                                int64_t rows_of_pass = 0) {
  const at::ScalarType sums = dtype == at::kDouble ? dtype : at::kFloat;
  Experts experts(kind.spec, std::move(weights), exchange);
  experts.cast_for_pass(rows_of_pass, rows.x.options());
  const at::Tensor x = rows.x.to(dtype), dout = rows.dout.to(dtype);
  Routing routing = rows.routing;
  routing.weights_CK = routing.weights_CK.to(sums);
  const RowRange all{0, kRows};
  std::vector<at::Tensor> parameters;
  experts.append_parameters_to(parameters);
  std::erase_if(parameters, [](const at::Tensor& x) { return !x.defined() || !x.requires_grad(); });
  // Half of the gradients exist already.
  for (size_t i = 0; i < parameters.size(); i += 2) gradient_of(parameters[i]).fill_(0.5);
  at::Tensor out = at::ones({kRows, kHidden}, on_gpu(sums)), dx = at::ones_like(out);
  experts.add(out, {routing, experts.dispatch(x, routing, nullptr)}, x, all,
              experts.forward_room(kRows, x.options()));
  const at::Tensor dweights =
      experts.backward(dx, {routing, experts.dispatch(x, routing, nullptr)}, dout, x, all,
                       experts.backward_room(kRows, x.options()));
  std::vector<at::Tensor> all_results{out, dx, dweights};
  for (const at::Tensor& parameter : parameters) {
    REQUIRE(parameter.grad().defined());
    all_results.push_back(parameter.grad());
  }
  return all_results;
}

TEST_CASE("cuda rows: all experts at once give what they give one after the other") {
  at::manual_seed(21);
  for (const Kind& kind : kinds()) {
    CAPTURE(kind.spec.stacked);
    CAPTURE(kind.adapters);
    CAPTURE(std::string(c10::toString(kind.held)));
    const Rows rows(kind.spec);
    const std::vector<ExpertMlp> weights = random_experts(kind);
    const std::vector<at::Tensor> exact =
        results(kind, weights_of(weights, at::kDouble), rows, at::kDouble);
    std::vector<at::Tensor> one_by_one;
    {
      const cuda::WithoutKernels without;
      one_by_one = results(kind, weights_of(weights, kind.held), rows, at::kBFloat16);
    }
    const AnyKernels kernels;
    const std::vector<at::Tensor> at_once =
        results(kind, weights_of(weights, kind.held), rows, at::kBFloat16);
    REQUIRE(at_once.size() == exact.size());
    for (size_t i = 0; i < exact.size(); ++i) {
      CAPTURE(i);
      // Each rounds as many tensors to bf16, so their errors are of the same size. Twice that error
      // allows for chance, and 2^-8 is one rounding of a bf16 result.
      const double off = testing::norm_of(wide(at_once[i]) - exact[i]),
                   other = testing::norm_of(wide(one_by_one[i]) - exact[i]);
      CHECK(off <= 2 * other + 0x1p-8 * testing::norm_of(exact[i]));
      CHECK(at_once[i].dtype() == one_by_one[i].dtype());
    }
    // The same bits each time, for rows from other processes, and by matrices that are cast before.
    ToItself itself;
    const std::pair<ExpertExchange*, int64_t> ways[] = {
        {nullptr, 0}, {&itself, 0}, {nullptr, expert_casts(kind.spec, kHidden).num_tokens}};
    for (const auto& [exchange, rows_of_pass] : ways) {
      CAPTURE(rows_of_pass);
      const std::vector<at::Tensor> again = results(kind, weights_of(weights, kind.held), rows,
                                                    at::kBFloat16, exchange, rows_of_pass);
      for (size_t i = 0; i < exact.size(); ++i) {
        CAPTURE(i);
        CHECK(at::equal(again[i], at_once[i]));
      }
    }
  }
}

TEST_CASE("cuda rows: a pass with enough rows casts matrices of experts, and no other does") {
  at::manual_seed(23);
  for (const Kind& kind : kinds()) {
    CAPTURE(kind.adapters);
    const std::vector<ExpertMlp> weights = random_experts(kind);
    const auto all_bf16 = [&](int64_t num_rows, at::ScalarType dtype) {
      Experts experts(kind.spec, weights, /*exchange=*/nullptr);
      experts.cast_for_pass(num_rows, on_gpu(dtype));
      for (const ExpertMlp& expert : experts.weights()) {
        for (const Linear* linear : expert.linears()) {
          for (const at::Tensor& x : {linear->weight, linear->lora_a, linear->lora_b}) {
            if (x.defined() && x.scalar_type() != at::kBFloat16) return false;
          }
          // Biases are added in fp32, and parameters keep their dtype.
          if (linear->bias.defined()) CHECK((linear->bias.scalar_type() == kind.held));
          CHECK((linear->parameters()[0].scalar_type() == kind.held));
        }
      }
      return true;
    };
    const bool before = kind.held == at::kBFloat16 && !kind.adapters;
    const int64_t enough = expert_casts(kind.spec, kHidden).num_tokens;
    {
      const cuda::WithoutKernels without;
      CHECK(all_bf16(enough, at::kBFloat16) == before);
    }
    const AnyKernels kernels;
    CHECK(all_bf16(enough, at::kBFloat16));
    CHECK(all_bf16(enough - 1, at::kBFloat16) == before);
    CHECK(all_bf16(enough, at::kFloat) == before);
  }
}

TEST_CASE("cuda rows: no host knows how many rows go to experts that are worked on at once") {
  at::manual_seed(22);
  const AnyKernels kernels;
  Kind kind = kinds()[0];
  const Rows rows(kind.spec);
  const auto are_at_once = [&](std::vector<ExpertMlp> weights, const at::Tensor& x) {
    const Experts experts(kind.spec, std::move(weights), /*exchange=*/nullptr);
    return experts.dispatch(x, rows.routing, nullptr).device_counts().defined();
  };
  const std::vector<ExpertMlp> weights = random_experts(kind);
  CHECK(are_at_once(weights, rows.x));
  // Where no kernel can read the parameters, experts run one after the other.
  CHECK_FALSE(are_at_once(weights, rows.x.to(at::kFloat)));
  std::vector<ExpertMlp> odd = weights;
  odd[1].up_proj.weight = testing::random({24, kHidden}, at::kFloat, /*is_aligned=*/false);
  CHECK_FALSE(are_at_once(odd, rows.x));
  kind.adapters = true;
  std::vector<ExpertMlp> adapted = random_experts(kind);
  CHECK(are_at_once(adapted, rows.x));
  adapted[4].gate_proj.lora_a = testing::random({4, kHidden}, at::kFloat, true);
  CHECK_FALSE(are_at_once(adapted, rows.x));
}

}  // namespace
}  // namespace longspan
