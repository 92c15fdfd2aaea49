#include "longspan/kernels/delta_rule_head.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "longspan/kernels/delta_rule_rows.h"

namespace longspan::delta_rule {
namespace {

constexpr double kNormEps = 1e-6;

/// Writes the inverse of 1 + L, where L is strictly lower triangular, C x C. Row i is the
/// identity's, less L's row i times the rows above.
template <typename A>
void invert(A* inverse, const A* lower) {
  for (int64_t i = 0; i < C; ++i) {
    A* row = inverse + i * C;
    std::fill(row, row + C, A{0});
    for (int64_t j = 0; j < i; ++j) {
      const A factor = lower[i * C + j];
      const A* above = inverse + j * C;
#pragma omp simd
      for (int64_t c = 0; c <= j; ++c) row[c] -= factor * above[c];
    }
    row[i] = 1;
  }
}

}  // namespace

template <typename A>
Head<A>::Head(int64_t num_tokens, int64_t num_value_heads, int64_t key_dim, int64_t value_dim,
              bool backward)
    : R_(num_value_heads),
      K_(key_dim),
      V_(value_dim),
      Z_(std::clamp<int64_t>((num_tokens + C - 1) / C, 1, kSegmentChunks)) {
  const auto options = at::TensorOptions(c10::CppTypeToScalarType<A>::value);
  const auto empty = [&](std::initializer_list<int64_t> sizes) {
    return at::empty(sizes, options);
  };
  x_ = empty({Z_, 2 * C, K_});
  norms_.resize(Z_ * 2 * C);
  products_ = empty({Z_, 2 * C, C});
  v_ = empty({Z_, R_, C, V_});
  decay_ = empty({Z_, R_, C, C});
  scores_ = empty({Z_, R_, C, C});
  solve_ = empty({Z_, R_, C, C});
  of_state_ = empty({Z_, R_, 2 * C, V_});
  right_ = empty({Z_, R_, C, V_});
  new_ = empty({Z_, R_, C, V_});
  scaled_ = empty({Z_, R_, C, V_});
  states_ = empty({Z_ + 1, R_, K_, V_});
  out_ = empty({Z_, R_, C, V_});
  gates_.resize(Z_ * R_);
  for (Gates& g : gates_) {
    for (auto* numbers : {&g.g, &g.beta, &g.dg, &g.dbeta, &g.sum, &g.since, &g.to_end}) {
      numbers->resize(C);
    }
  }
  if (!backward) return;
  dout_ = empty({Z_, R_, C, V_});
  dnew_ = empty({Z_, R_, C, V_});
  dscaled_ = empty({Z_, R_, C, V_});
  dright_ = empty({Z_, R_, C, V_});
  dof_state_ = empty({Z_, R_, 2 * C, V_});
  dstates_ = empty({Z_ + 1, R_, K_, V_});
  dscores_ = empty({Z_, R_, C, C});
  dsolve_ = empty({Z_, R_, C, C});
  dproducts_ = empty({Z_, 2 * C, C});
  dx_ = empty({Z_, 2 * C, K_});
}

template <typename A>
A* Head<A>::of(const at::Tensor& x, int64_t z, int64_t r) const {
  return x.mutable_data_ptr<A>() + z * x.stride(0) + r * x.stride(1);
}

template <typename A>
void Head<A>::load(const HeadViews& in, const std::vector<int64_t>& documents_T, int64_t begin) {
  const int64_t T = std::ssize(documents_T);
  size_ = std::min(kSegment, T - begin);
  num_chunks_ = (size_ + C - 1) / C;
  documents_.assign(1, documents_T[std::max<int64_t>(begin - 1, 0)]);
  // Pads with zeros in the last document, which change nothing.
  const A scale = 1 / std::sqrt(static_cast<A>(K_));
  for (int64_t i = 0; i < num_chunks_ * C; ++i) {
    const int64_t z = i / C, c = i % C, t = begin + i;
    const bool is_there = i < size_;
    documents_.push_back(is_there ? documents_T[t] : documents_.back());
    for (const bool is_key : {false, true}) {
      const int64_t row = is_key ? C + c : c;
      A* x = of(x_, z, row);
      A& norm = norms_[z * 2 * C + row];
      if (is_there) {
        read_row(x, is_key ? in.k_TK : in.q_TK, t, 0, K_);
        norm = 1 / std::sqrt(dot(x, x, K_) + static_cast<A>(kNormEps));
        const A factor = is_key ? norm : norm * scale;
        for (int64_t k = 0; k < K_; ++k) x[k] *= factor;
      } else {
        std::fill(x, x + K_, A{0});
        norm = 0;
      }
    }
    for (int64_t r = 0; r < R_; ++r) {
      A* v = of(v_, z, r) + c * V_;
      Gates& of_head = gates(z, r);
      if (is_there) {
        read_row(v, in.v_TRV, t, r, V_);
        read_row(&of_head.g[c], in.g_TR.select(1, r), t, 0, 1);
        read_row(&of_head.beta[c], in.beta_TR.select(1, r), t, 0, 1);
      } else {
        std::fill(v, v + V_, A{0});
        of_head.g[c] = of_head.beta[c] = 0;
      }
    }
  }
}

template <typename A>
void Head<A>::prepare_decays() {
  for (int64_t z = 0; z < num_chunks_; ++z) {
    const int64_t* documents = documents_.data() + 1 + z * C;
    const int64_t before = documents[-1], last = documents[C - 1];
    for (int64_t r = 0; r < R_; ++r) {
      Gates& of_head = gates(z, r);
      double sum = 0;
      for (int64_t c = 0; c < C; ++c) of_head.sum[c] = sum += of_head.g[c];
      for (int64_t c = 0; c < C; ++c) {
        of_head.since[c] = documents[c] == before ? std::exp(of_head.sum[c]) : 0;
        of_head.to_end[c] = documents[c] == last ? std::exp(sum - of_head.sum[c]) : 0;
      }
      of_head.whole = last == before ? std::exp(sum) : 0;
      A* decay = of(decay_, z, r);
      for (int64_t i = 0; i < C; ++i) {
        A* row = decay + i * C;
        for (int64_t j = 0; j < C; ++j) {
          row[j] = j <= i && documents[i] == documents[j]
                       ? std::exp(static_cast<A>(of_head.sum[i] - of_head.sum[j]))
                       : A{0};
        }
      }
    }
  }
}

template <typename A>
void Head<A>::prepare_solutions() {
  const at::Tensor x = x_.narrow(0, 0, num_chunks_);
  at::Tensor products = products_.narrow(0, 0, num_chunks_);
  at::bmm_out(products, x, x.narrow(1, C, C).transpose(1, 2));
  std::vector<A> lower(C * C);
  for (int64_t z = 0; z < num_chunks_; ++z) {
    const A *of_queries = of(products_, z, 0), *of_keys = of(products_, z, C);
    for (int64_t r = 0; r < R_; ++r) {
      const A* decay = of(decay_, z, r);
      A* scores = of(scores_, z, r);
      for (int64_t i = 0; i < C; ++i) {
        const A beta = static_cast<A>(gates(z, r).beta[i]);
        for (int64_t j = 0; j < C; ++j) {
          const int64_t ij = i * C + j;
          scores[ij] = decay[ij] * of_queries[ij];
          lower[ij] = beta * decay[ij] * of_keys[ij];
        }
      }
      invert(of(solve_, z, r), lower.data());
    }
  }
}

template <typename A>
void Head<A>::scan() {
  for (int64_t z = 0; z < num_chunks_; ++z) {
    const at::Tensor x = x_[z], state = states_[z];
    at::Tensor of_state = of_state_[z], new_z = new_[z], next = states_[z + 1];
    at::bmm_out(of_state, x.expand({R_, 2 * C, K_}), state);
    for (int64_t r = 0; r < R_; ++r) {
      const Gates& of_head = gates(z, r);
      const A *v = of(v_, z, r), *of_keys = of(of_state_, z, r) + C * V_;
      A* right = of(right_, z, r);
      for (int64_t c = 0; c < C; ++c) {
        const A beta = static_cast<A>(of_head.beta[c]);
        const A since = static_cast<A>(of_head.since[c]);
        for (int64_t i = c * V_; i < (c + 1) * V_; ++i)
          right[i] = beta * (v[i] - since * of_keys[i]);
      }
    }
    at::bmm_out(new_z, solve_[z], right_[z]);
    for (int64_t r = 0; r < R_; ++r) {
      const Gates& of_head = gates(z, r);
      const A *written = of(new_, z, r), *from = of(states_, z, r);
      A *scaled = of(scaled_, z, r), *to = of(states_, z + 1, r);
      for (int64_t c = 0; c < C; ++c) {
        const A to_end = static_cast<A>(of_head.to_end[c]);
        for (int64_t i = c * V_; i < (c + 1) * V_; ++i) scaled[i] = to_end * written[i];
      }
      const A whole = static_cast<A>(of_head.whole);
      for (int64_t i = 0; i < K_ * V_; ++i) to[i] = whole * from[i];
    }
    next.baddbmm_(x.narrow(0, C, C).t().expand({R_, K_, C}), scaled_[z]);
  }
}

template <typename A>
void Head<A>::forward(const HeadViews& in, const std::vector<int64_t>& documents_T,
                      const at::Tensor& out_TRV, at::Tensor state_RKV,
                      const at::Tensor& segment_states) {
  const int64_t T = std::ssize(documents_T);
  std::vector<A> sum(V_);
  for (int64_t begin = 0; begin < T; begin += kSegment) {
    load(in, documents_T, begin);
    prepare_decays();
    prepare_solutions();
    states_[0].copy_(state_RKV);
    if (segment_states.defined()) segment_states[begin / kSegment].copy_(state_RKV);
    scan();
    state_RKV.copy_(states_[num_chunks_]);
    at::Tensor out = batch(out_, num_chunks_ * R_);
    at::bmm_out(out, batch(scores_, num_chunks_ * R_), batch(new_, num_chunks_ * R_));
    for (int64_t i = 0; i < size_; ++i) {
      const int64_t z = i / C, c = i % C;
      for (int64_t r = 0; r < R_; ++r) {
        const A since = static_cast<A>(gates(z, r).since[c]);
        const A *within = of(out_, z, r) + c * V_, *before = of(of_state_, z, r) + c * V_;
        for (int64_t v = 0; v < V_; ++v) sum[v] = within[v] + since * before[v];
        write_row(out_TRV, begin + i, r, sum.data(), V_);
      }
    }
  }
}

template class Head<float>;
template class Head<double>;

}  // namespace longspan::delta_rule
