// All of libfabric that is bound, for bindgen to read.

#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_errno.h>

// From libfabric 2.0 on the field lies in an anonymous union, which only C names alike in all versions.
static inline void ask_for_manual_progress(struct fi_domain_attr *attr) {
    attr->control_progress = attr->data_progress = FI_PROGRESS_MANUAL;
}
