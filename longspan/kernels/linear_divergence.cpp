// R: rows of a part of a chunk. J: outcomes (all tokens; or the k tokens and the tail). K: tokens
// chosen by top_k.
#include "longspan/kernels/linear_divergence.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <limits>
#include <utility>
#include <vector>

#include "longspan/kernels/fused_op.h"
#include "longspan/kernels/linear.h"

namespace longspan {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
/// The log-probability of an outcome without tokens. exp() gives 0 without a difference of
/// infinities.
constexpr double kImpossible = -1e4;

/// Log-probabilities of the same outcomes, in fp64.
struct Outcomes {
  at::Tensor student_RJ, teacher_RJ;
};

/// log(student / M), with log_ratio = log(student / teacher). log(teacher / M) is the result minus
/// log_ratio. Small ratios keep their digits, and large ones do not overflow.
at::Tensor log_student_to_mixture(const at::Tensor& log_ratio_RJ, double beta) {
  const at::Tensor falls_RJ = at::expm1(log_ratio_RJ.abs().neg_());
  const at::Tensor share_RJ =
      at::full_like(log_ratio_RJ, 1 - beta).masked_fill_(log_ratio_RJ.gt(0), beta);
  return falls_RJ.mul_(share_RJ).log1p_().neg_().add_(log_ratio_RJ.clamp_max(0));
}

struct Divergence {
  at::Tensor value_R;
  at::Tensor student_kl_R;  // KL(student || M); M is the teacher for beta = 1; none for beta = 0
};

Divergence divergence_of(const Outcomes& outcomes, double beta) {
  const auto mean = [](const at::Tensor& logprobs_RJ, const at::Tensor& x_RJ) {
    return logprobs_RJ.exp().mul_(x_RJ).sum(1);
  };
  const at::Tensor log_ratio_RJ = outcomes.student_RJ - outcomes.teacher_RJ;
  if (beta == 0) return {mean(outcomes.teacher_RJ, log_ratio_RJ).neg(), {}};
  if (beta == 1) {
    const at::Tensor kl_R = mean(outcomes.student_RJ, log_ratio_RJ);
    return {kl_R, kl_R};
  }
  const at::Tensor to_mixture_RJ = log_student_to_mixture(log_ratio_RJ, beta);
  const at::Tensor student_kl_R = mean(outcomes.student_RJ, to_mixture_RJ);
  const at::Tensor teacher_kl_R = mean(outcomes.teacher_RJ, to_mixture_RJ - log_ratio_RJ);
  return {beta * teacher_kl_R + (1 - beta) * student_kl_R, student_kl_R};
}

/// Returns d divergence / d logits, for logits whose softmax is the student's distribution of
/// outcomes. With d divergence / d student = w log(student / M) + a constant, the gradient is w
/// student (log(student / M) - KL(student || M)).
at::Tensor logit_gradient(const Outcomes& outcomes, double beta, const at::Tensor& student_kl_R) {
  at::Tensor student_RJ = outcomes.student_RJ.exp();
  if (beta == 0) return student_RJ.sub_(outcomes.teacher_RJ.exp());
  at::Tensor to_mixture_RJ = outcomes.student_RJ - outcomes.teacher_RJ;
  if (beta < 1) to_mixture_RJ = log_student_to_mixture(to_mixture_RJ, beta).mul_(1 - beta);
  const double weight = beta < 1 ? 1 - beta : 1.0;
  return student_RJ.mul_(to_mixture_RJ.sub_((weight * student_kl_R).unsqueeze(1)));
}

/// log p of tokens: logits minus their log-sum-exp.
at::Tensor log_probs(const at::Tensor& logits_RV, const at::Tensor& lse_R) {
  return logits_RV.to(at::kDouble) - lse_R.unsqueeze(1);
}

at::Tensor log_sum_exp(const at::Tensor& logits_RV) {
  return at::logsumexp(logits_RV.to(at::kDouble), {1});
}

/// The tokens that top_k chooses. A token chosen twice is marked as repeated the second time.
struct Chosen {
  at::Tensor tokens_RK, repeated_RK;
};

Chosen choose(const at::Tensor& student_RV, const at::Tensor& teacher_RV, double beta, int64_t k) {
  const auto most_probable = [&](const at::Tensor& logits_RV) {
    return std::get<1>(at::topk(logits_RV, k, 1, /*largest=*/true, /*sorted=*/false));
  };
  if (beta == 0 || beta == 1) {
    const at::Tensor tokens_RK = most_probable(beta == 0 ? teacher_RV : student_RV);
    return {tokens_RK, at::zeros_like(tokens_RK, at::kBool)};
  }
  const at::Tensor both_RK = at::cat({most_probable(student_RV), most_probable(teacher_RV)}, 1);
  const at::Tensor tokens_RK = std::get<0>(both_RK.sort(1));
  const at::Tensor same_RK =
      tokens_RK.narrow(1, 1, 2 * k - 1).eq(tokens_RK.narrow(1, 0, 2 * k - 1));
  return {tokens_RK, at::constant_pad_nd(same_RK, {1, 0}, false)};
}

/// Log-probabilities of chosen tokens and, last, of the tail.
struct ChosenLogProbs {
  at::Tensor logprobs_RJ;
  at::Tensor tail_lse_R;  // log-sum-exp of the tail's logits; 0 without a tail
};

ChosenLogProbs log_probs_of(const Chosen& chosen, const at::Tensor& logits_RV) {
  at::Tensor logits = logits_RV.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  const at::Tensor lse_R1 = at::logsumexp(logits, {1}, /*keepdim=*/true);
  const at::Tensor picked_RK =
      logits.gather(1, chosen.tokens_RK).sub_(lse_R1).masked_fill_(chosen.repeated_RK, kImpossible);
  const at::Tensor tail_R1 =
      at::logsumexp(logits.scatter_(1, chosen.tokens_RK, kMinusInfinity), {1}, true);
  const at::Tensor none_R1 = tail_R1.eq(kMinusInfinity);
  return {at::cat({picked_RK, (tail_R1 - lse_R1).masked_fill_(none_R1, kImpossible)}, 1),
          tail_R1.masked_fill(none_R1, 0.0).squeeze(1)};
}

at::Tensor rows_of(const at::Tensor& x, int64_t begin, int64_t size) {
  return x.defined() ? x.narrow(0, begin, size) : x;
}
std::vector<at::Tensor> rows_of(const std::vector<at::Tensor>& tensors, int64_t begin,
                                int64_t size) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& x : tensors) parts.push_back(rows_of(x, begin, size));
  return parts;
}

/// The divergence of the whole vocabulary.
struct WholeVocabulary {
  double beta;
  at::Tensor student_lse_L, teacher_lse_L, student_kl_L;

  WholeVocabulary(int64_t L, const DivergenceOptions& options, const at::TensorOptions& fp64)
      : beta(options.beta),
        student_lse_L(at::empty({L}, fp64)),
        teacher_lse_L(at::empty({L}, fp64)),
        student_kl_L(at::empty({L}, fp64)) {}

  static constexpr bool kBackwardReadsTeacher = true;

  Outcomes outcomes(int64_t begin, const std::vector<at::Tensor>& logits) const {
    const int64_t R = logits[0].size(0);
    return {log_probs(logits[0], rows_of(student_lse_L, begin, R)),
            log_probs(logits[1], rows_of(teacher_lse_L, begin, R))};
  }
  at::Tensor forward(int64_t begin, const std::vector<at::Tensor>& logits, bool /*trains*/) {
    const int64_t R = logits[0].size(0);
    rows_of(student_lse_L, begin, R).copy_(log_sum_exp(logits[0]));
    rows_of(teacher_lse_L, begin, R).copy_(log_sum_exp(logits[1]));
    const auto [value_R, kl_R] = divergence_of(outcomes(begin, logits), beta);
    if (kl_R.defined()) rows_of(student_kl_L, begin, R).copy_(kl_R);
    return value_R;
  }
  at::Tensor backward(int64_t begin, const std::vector<at::Tensor>& logits) const {
    return logit_gradient(outcomes(begin, logits), beta,
                          rows_of(student_kl_L, begin, logits[0].size(0)));
  }
};

/// The divergence of chosen tokens and the tail. A logit of the tail gets its share of the tail's
/// gradient.
struct TopTokens {
  double beta;
  int64_t k;
  at::Tensor tokens_LK, gradients_LJ, tail_lse_L;

  TopTokens(int64_t L, const DivergenceOptions& options, const at::TensorOptions& fp64)
      : beta(options.beta), k(*options.top_k) {
    const int64_t K = beta == 0 || beta == 1 ? k : 2 * k;
    tokens_LK = at::empty({L, K}, fp64.dtype(at::kLong));
    gradients_LJ = at::empty({L, K + 1}, fp64);
    tail_lse_L = at::empty({L}, fp64);
  }

  static constexpr bool kBackwardReadsTeacher = false;

  at::Tensor forward(int64_t begin, const std::vector<at::Tensor>& logits, bool trains) {
    const int64_t R = logits[0].size(0);
    const Chosen chosen = choose(logits[0], logits[1], beta, k);
    const auto [student_RJ, tail_lse_R] = log_probs_of(chosen, logits[0]);
    const Outcomes outcomes{student_RJ, log_probs_of(chosen, logits[1]).logprobs_RJ};
    const auto [value_R, kl_R] = divergence_of(outcomes, beta);
    if (trains) {
      rows_of(tokens_LK, begin, R).copy_(chosen.tokens_RK);
      rows_of(tail_lse_L, begin, R).copy_(tail_lse_R);
      rows_of(gradients_LJ, begin, R).copy_(logit_gradient(outcomes, beta, kl_R));
    }
    return value_R;
  }
  at::Tensor backward(int64_t begin, const std::vector<at::Tensor>& logits) const {
    const int64_t R = logits[0].size(0), K = tokens_LK.size(1);
    const at::Tensor tokens_RK = rows_of(tokens_LK, begin, R),
                     gradients_RJ = rows_of(gradients_LJ, begin, R);
    at::Tensor tail_RV = log_probs(logits[0], rows_of(tail_lse_L, begin, R))
                             .scatter_(1, tokens_RK, kMinusInfinity)
                             .exp_();
    return tail_RV.mul_(gradients_RJ.narrow(1, K, 1))
        .scatter_add_(1, tokens_RK, gradients_RJ.narrow(1, 0, K));
  }
};

/// Calls work(), which reads the teacher's weight if `reads`.
template <typename Work>
void with_teacher(const TeacherHead& teacher, bool reads, const Work& work) {
  if (reads && teacher.before_use) teacher.before_use();
  work();
  if (reads && teacher.after_use) teacher.after_use();
}

template <typename Kind>
at::Tensor divergence(const at::Tensor& hidden_LD, const at::Tensor& weight_VD,
                      const TeacherHead& teacher, const DivergenceOptions& options,
                      ChunkBytes chunk_bytes) {
  const bool trains = needs_backward({hidden_LD}, {weight_VD});
  const auto fp64 = hidden_LD.options().dtype(at::kDouble);
  Kind kind(hidden_LD.size(0), options, fp64);
  const HeadInput teacher_input{teacher.hidden_LE.detach(), teacher.weight_VE, options.temperature};
  at::Tensor divergence_L;
  {
    c10::NoGradGuard no_grad;
    divergence_L = at::empty({hidden_LD.size(0)}, fp64);
    with_teacher(teacher, /*reads=*/true, [&] {
      const HeadChunks chunks({{hidden_LD, weight_VD, options.temperature}, teacher_input},
                              chunk_bytes);
      chunks.for_each([&](int64_t begin, int64_t size, std::vector<at::Tensor>& logits) {
        chunks.for_parts(size, [&](int64_t first, int64_t count) {
          rows_of(divergence_L, begin + first, count)
              .copy_(kind.forward(begin + first, rows_of(logits, first, count), trains));
        });
      });
    });
  }
  if (!trains) return divergence_L;
  return attach_backward(
      {divergence_L}, {hidden_LD}, {weight_VD},
      [hidden_LD = hidden_LD.detach(), needs_dhidden = hidden_LD.requires_grad(), weight_VD,
       teacher, teacher_input, temperature = options.temperature, kind,
       chunk_bytes](std::vector<at::Tensor> upstream) -> std::vector<at::Tensor> {
        c10::NoGradGuard no_grad;
        const at::Tensor scale_L1 = (upstream[0] / temperature).unsqueeze(1);
        const at::Tensor dhidden_LD = needs_dhidden ? at::empty_like(hidden_LD) : at::Tensor();
        with_teacher(teacher, Kind::kBackwardReadsTeacher, [&] {
          std::vector<HeadInput> heads = {{hidden_LD, weight_VD, temperature}};
          if (Kind::kBackwardReadsTeacher) heads.push_back(teacher_input);
          const HeadChunks chunks(std::move(heads), chunk_bytes);
          PreciseSums sums({weight_VD}, chunks.num_chunks());
          const auto dweight_VD = weight_VD.requires_grad() ? gradient_of(weight_VD) : at::Tensor();
          chunks.for_each([&](int64_t begin, int64_t size, std::vector<at::Tensor>& logits) {
            chunks.for_parts(size, [&](int64_t first, int64_t count) {
              const auto scale_R1 = rows_of(scale_L1, begin + first, count);
              rows_of(logits[0], first, count)
                  .copy_(
                      kind.backward(begin + first, rows_of(logits, first, count)).mul_(scale_R1));
            });
            add_head_gradients(logits[0].to(hidden_LD.scalar_type()),
                               rows_of(hidden_LD, begin, size), chunks.head().weight_VD,
                               rows_of(dhidden_LD, begin, size), dweight_VD);
          });
          sums.finish();
        });
        return {dhidden_LD};
      })[0];
}

}  // namespace

at::Tensor linear_divergence(const at::Tensor& hidden_LD, const at::Tensor& weight_VD,
                             const TeacherHead& teacher, const DivergenceOptions& options,
                             ChunkBytes chunk_bytes) {
  TORCH_CHECK(options.beta >= 0 && options.beta <= 1, "a beta of ", options.beta,
              ", outside of 0 to 1");
  TORCH_CHECK(!options.top_k || *options.top_k >= 1, "the divergence of the ", *options.top_k,
              " most probable tokens");
  const bool chooses = options.top_k && *options.top_k < weight_VD.size(0);
  return chooses ? divergence<TopTokens>(hidden_LD, weight_VD, teacher, options, chunk_bytes)
                 : divergence<WholeVocabulary>(hidden_LD, weight_VD, teacher, options, chunk_bytes);
}

}  // namespace longspan
