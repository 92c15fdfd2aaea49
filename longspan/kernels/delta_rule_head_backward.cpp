// The backward of delta_rule_head.h.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "longspan/kernels/delta_rule_head.h"
#include "longspan/kernels/delta_rule_rows.h"

namespace longspan::delta_rule {

// Computes d loss / d new, right, [q S; k S] and the states, from the segment's end to its begin.
template <typename A>
void Head<A>::scan_back(const at::Tensor& dstate_RKV) {
  at::Tensor from_scores = batch(dnew_, num_chunks_ * R_);
  at::bmm_out(from_scores, batch(scores_, num_chunks_ * R_).transpose(1, 2),
              batch(dout_, num_chunks_ * R_));
  dstates_[num_chunks_].copy_(dstate_RKV);
  for (int64_t z = num_chunks_ - 1; z >= 0; --z) {
    const at::Tensor x = x_[z], dnext = dstates_[z + 1];
    at::Tensor dscaled = dscaled_[z], dright = dright_[z], dstate = dstates_[z];
    at::bmm_out(dscaled, x.narrow(0, C, C).expand({R_, C, K_}), dnext);
    for (int64_t r = 0; r < R_; ++r) {
      const Gates& of_head = gates(z, r);
      const A* from = of(dscaled_, z, r);
      A* to = of(dnew_, z, r);
      for (int64_t c = 0; c < C; ++c) {
        const A to_end = static_cast<A>(of_head.to_end[c]);
        for (int64_t i = c * V_; i < (c + 1) * V_; ++i) to[i] += to_end * from[i];
      }
    }
    at::bmm_out(dright, solve_[z].transpose(1, 2), dnew_[z]);
    for (int64_t r = 0; r < R_; ++r) {
      const Gates& of_head = gates(z, r);
      const A *dout = of(dout_, z, r), *of_right = of(dright_, z, r),
              *after = of(dstates_, z + 1, r);
      A *of_queries = of(dof_state_, z, r), *of_keys = of_queries + C * V_,
        *to = of(dstates_, z, r);
      for (int64_t c = 0; c < C; ++c) {
        const A since = static_cast<A>(of_head.since[c]);
        const A factor = -since * static_cast<A>(of_head.beta[c]);
        for (int64_t i = c * V_; i < (c + 1) * V_; ++i) {
          of_queries[i] = since * dout[i];
          of_keys[i] = factor * of_right[i];
        }
      }
      const A whole = static_cast<A>(of_head.whole);
      for (int64_t i = 0; i < K_ * V_; ++i) to[i] = whole * after[i];
    }
    dstate.baddbmm_(x.t().expand({R_, K_, 2 * C}), dof_state_[z]);
  }
}

// Computes d loss / d x: through the states, through the updates of the states, and through the
// products of queries and keys.
template <typename A>
void Head<A>::gradients_of_products() {
  const int64_t Z = num_chunks_;
  at::Tensor dscores = batch(dscores_, Z * R_), dsolve = batch(dsolve_, Z * R_);
  const at::Tensor written = batch(new_, Z * R_).transpose(1, 2);
  at::bmm_out(dscores, batch(dout_, Z * R_), written);
  at::bmm_out(dsolve, batch(dright_, Z * R_), written);  // gradient of `lower`, negated
  for (int64_t z = 0; z < Z; ++z) {
    A *of_queries = of(dproducts_, z, 0), *of_keys = of(dproducts_, z, C);
    std::fill(of_queries, of_queries + 2 * C * C, A{0});
    for (int64_t r = 0; r < R_; ++r) {
      const A *decay = of(decay_, z, r), *scores = of(dscores_, z, r), *solve = of(dsolve_, z, r);
      for (int64_t i = 0; i < C; ++i) {
        const A beta = static_cast<A>(gates(z, r).beta[i]);
        for (int64_t j = 0; j <= i; ++j)
          of_queries[i * C + j] += scores[i * C + j] * decay[i * C + j];
        for (int64_t j = 0; j < i; ++j) {
          of_keys[i * C + j] -= solve[i * C + j] * beta * decay[i * C + j];
        }
      }
    }
  }
  const at::Tensor x = x_.narrow(0, 0, Z), keys = x.narrow(1, C, C);
  at::Tensor dx = dx_.narrow(0, 0, Z), dkeys = dx.narrow(1, C, C);
  const at::Tensor dproducts = dproducts_.narrow(0, 0, Z);
  at::bmm_out(dx, dproducts, keys);
  dkeys.baddbmm_(dproducts.transpose(1, 2), x);
  for (int64_t r = 0; r < R_; ++r) {
    const auto head = [&](const at::Tensor& y, int64_t first) {
      return y.narrow(0, first, Z).select(1, r);
    };
    dx.baddbmm_(head(dof_state_, 0), head(states_, 0).transpose(1, 2));
    dkeys.baddbmm_(head(scaled_, 0), head(dstates_, 1).transpose(1, 2));
  }
}

// Computes d loss / d g and d beta. A decay's logarithm is a difference of two sums of g, so its
// gradient is added to one token's sum and subtracted from the other's.
template <typename A>
void Head<A>::gradients_of_gates() {
  std::vector<double> dsum(C);
  for (int64_t z = 0; z < num_chunks_; ++z) {
    const A* of_keys = of(products_, z, C);
    for (int64_t r = 0; r < R_; ++r) {
      Gates& of_head = gates(z, r);
      std::ranges::fill(dsum, 0.0);
      const A *decay = of(decay_, z, r), *scores = of(scores_, z, r);
      const A *dscores = of(dscores_, z, r), *dsolve = of(dsolve_, z, r);
      const A *v = of(v_, z, r), *written = of(new_, z, r), *dscaled = of(dscaled_, z, r);
      const A *queries_state = of(of_state_, z, r), *keys_state = queries_state + C * V_;
      const A *dout = of(dout_, z, r), *dright = of(dright_, z, r);
      double last = 0;
      for (int64_t i = 0; i < C; ++i) {
        const double beta = of_head.beta[i], since = of_head.since[i];
        double of_beta = 0;
        for (int64_t j = 0; j < i; ++j) {
          const int64_t ij = i * C + j;
          const double unscaled = -static_cast<double>(dsolve[ij]) * decay[ij] * of_keys[ij];
          const double weight = static_cast<double>(dscores[ij]) * scores[ij] + unscaled * beta;
          of_beta += unscaled;
          dsum[i] += weight;
          dsum[j] -= weight;
        }
        const int64_t at = i * V_;
        const double of_values = dot(dright + at, v + at, V_),
                     of_state = dot(dright + at, keys_state + at, V_);
        of_head.dbeta[i] = of_beta + of_values - since * of_state;
        dsum[i] += since * (dot(dout + at, queries_state + at, V_) - beta * of_state);
        const double to_end = of_head.to_end[i] * dot(dscaled + at, written + at, V_);
        dsum[i] -= to_end;
        last += to_end;
      }
      if (of_head.whole != 0) {
        last += of_head.whole * dot(of(states_, z, r), of(dstates_, z + 1, r), K_ * V_);
      }
      dsum[C - 1] += last;
      double sum = 0;
      for (int64_t i = C - 1; i >= 0; --i) of_head.dg[i] = sum += dsum[i];
    }
  }
}

template <typename A>
void Head<A>::store_gradients(const HeadViews& in, const HeadViews& gradients, int64_t begin) {
  std::vector<A> row(std::max(K_, V_));
  const A scale = 1 / std::sqrt(static_cast<A>(K_));
  for (int64_t i = 0; i < size_; ++i) {
    const int64_t z = i / C, c = i % C, t = begin + i;
    for (const bool is_key : {false, true}) {
      const int64_t place = is_key ? C + c : c;
      const A norm = norms_[z * 2 * C + place], factor = is_key ? A{1} : scale;
      const A *x = of(x_, z, place), *dx = of(dx_, z, place);
      // y = f n x with n = (x x + eps)^(-1/2): dx = n (f dy - y (y dy) / f).
      const A along = dot(x, dx, K_) / factor;
      for (int64_t k = 0; k < K_; ++k) row[k] = norm * (factor * dx[k] - along * x[k]);
      write_row(is_key ? gradients.k_TK : gradients.q_TK, t, 0, row.data(), K_);
    }
    for (int64_t r = 0; r < R_; ++r) {
      const Gates& of_head = gates(z, r);
      const A beta = static_cast<A>(of_head.beta[c]);
      const A* dright = of(dright_, z, r) + c * V_;
      for (int64_t v = 0; v < V_; ++v) row[v] = beta * dright[v];
      write_row(gradients.v_TRV, t, r, row.data(), V_);
      write_row(gradients.g_TR.select(1, r), t, 0, &of_head.dg[c], 1);
      write_row(gradients.beta_TR.select(1, r), t, 0, &of_head.dbeta[c], 1);
    }
  }
}

template <typename A>
void Head<A>::backward(const HeadViews& in, const std::vector<int64_t>& documents_T,
                       const at::Tensor& dout_TRV, const at::Tensor& segment_states,
                       at::Tensor dstate_RKV, const HeadViews& gradients) {
  const int64_t T = std::ssize(documents_T);
  for (int64_t segment = num_segments(T) - 1; segment >= 0; --segment) {
    const int64_t begin = segment * kSegment;
    load(in, documents_T, begin);
    prepare_decays();
    prepare_solutions();
    states_[0].copy_(segment_states[segment]);
    scan();
    dout_.narrow(0, 0, num_chunks_).zero_();
    for (int64_t i = 0; i < size_; ++i) {
      for (int64_t r = 0; r < R_; ++r) {
        read_row(of(dout_, i / C, r) + (i % C) * V_, dout_TRV, begin + i, r, V_);
      }
    }
    scan_back(dstate_RKV);
    gradients_of_products();
    gradients_of_gates();
    store_gradients(in, gradients, begin);
    dstate_RKV.copy_(dstates_[0]);
  }
}

template void Head<float>::scan_back(const at::Tensor& dstate_RKV);
template void Head<float>::gradients_of_products();
template void Head<float>::gradients_of_gates();
template void Head<float>::store_gradients(const HeadViews& in, const HeadViews& gradients,
                                           int64_t begin);
template void Head<float>::backward(const HeadViews& in, const std::vector<int64_t>& documents_T,
                                    const at::Tensor& dout_TRV, const at::Tensor& segment_states,
                                    at::Tensor dstate_RKV, const HeadViews& gradients);
template void Head<double>::scan_back(const at::Tensor& dstate_RKV);
template void Head<double>::gradients_of_products();
template void Head<double>::gradients_of_gates();
template void Head<double>::store_gradients(const HeadViews& in, const HeadViews& gradients,
                                            int64_t begin);
template void Head<double>::backward(const HeadViews& in, const std::vector<int64_t>& documents_T,
                                     const at::Tensor& dout_TRV, const at::Tensor& segment_states,
                                     at::Tensor dstate_RKV, const HeadViews& gradients);

}  // namespace longspan::delta_rule
