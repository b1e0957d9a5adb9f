/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What fi_getinfo answers: to no hints, to its own answers, to what each MPI asks, and to what cannot be had.
 *
 * usage: getinfo LIBFABRIC...
 *
 * Several copies are used side by side in this one process, and each is closed and opened again, as MPIs do that are made
 * of plug-ins.
 */
#include "harness.h"

#include <malloc.h>

static struct fi_info *ask(uint32_t api, struct fi_info *hints, uint64_t flags, int expected)
{
	struct fi_info *info = NULL, *found = NULL;
	int r = lf.getinfo(api, NULL, NULL, flags, hints, &info);
	if (expected == 0 && r != 0)
		FAIL("refused with %d", r);
	/* Without a name among the hints others answer too. */
	for (struct fi_info *i = info; i && r == 0; i = i->next)
		if (!strcmp(i->fabric_attr->prov_name, "isthmus")) {
			/* The core copies its own sizes, which may be newer than these headers'. */
			CHECK(malloc_usable_size(i->domain_attr) >= 224 && malloc_usable_size(i->tx_attr) >= 80);
			CHECK(malloc_usable_size(i->rx_attr) >= 64 && malloc_usable_size(i->ep_attr) >= 96);
			CHECK(malloc_usable_size(i->fabric_attr) >= 32 && malloc_usable_size(i) >= 120);
			CHECK(!found); /* one entry */
			found = lf.dupinfo(i);
		}
	if (info)
		lf.freeinfo(info);
	if (expected == 0)
		CHECK(found);
	else if (found)
		FAIL("not refused");
	return found;
}

static struct fi_info *blank(void)
{
	struct fi_info *hints = lf.dupinfo(NULL);
	hints->fabric_attr->prov_name = strdup("isthmus");
	return hints;
}

static void own_answers(void)
{
	test_name = "own answers";
	uint32_t apis[] = {FI_VERSION(1, 0), FI_VERSION(1, 5), FI_VERSION(1, 9), FI_VERSION(1, 17), lf.version()};
	for (size_t i = 0; i < sizeof apis / sizeof *apis; i++) {
		if (apis[i] > lf.version())
			continue;
		struct fi_info *info = ask(apis[i], NULL, 0, 0);
		CHECK((info->caps & (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV | FI_MULTI_RECV)) ==
		      (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV | FI_MULTI_RECV));
		CHECK(!(info->caps & FI_SOURCE));
		EQUAL(info->mode, 0);
		EQUAL(info->ep_attr->type, FI_EP_RDM);
		EQUAL(info->domain_attr->mr_mode, apis[i] < FI_VERSION(1, 5) ? FI_MR_SCALABLE : 0);
		CHECK(info->tx_attr->inject_size >= 64);
		CHECK(info->domain_attr->name && info->fabric_attr->name);
		/* Counters without a limit: members that these headers may not have. */
		if (apis[i] >= FI_VERSION(2, 5)) {
			const uint64_t *attr = (const uint64_t *)info->domain_attr;
			CHECK(attr[26] == UINT64_MAX && attr[27] == UINT64_MAX);
		}
		struct fi_info *again = ask(apis[i], info, 0, 0);
		EQUAL(again->caps, info->caps);
		lf.freeinfo(again);
		lf.freeinfo(info);
	}
	lf.freeinfo(ask(0, NULL, 0, 0));
}

static void mpich(void)
{
	test_name = "what MPICH 5 asks";
	struct fi_info *first = ask(FI_VERSION(1, 17), NULL, 0, 0);
	struct fi_info *h = blank();
	h->caps = first->caps;
	h->mode = FI_CONTEXT | FI_CONTEXT2 | FI_ASYNC_IOV | FI_RX_CQ_DATA;
	h->domain_attr->mr_mode = FI_MR_ENDPOINT;
	h->ep_attr->type = FI_EP_RDM;
	h->domain_attr->threading = FI_THREAD_DOMAIN;
	h->domain_attr->control_progress = h->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	h->domain_attr->resource_mgmt = FI_RM_ENABLED;
	h->domain_attr->av_type = FI_AV_TABLE;
	h->domain_attr->cq_data_size = 4;
	h->tx_attr->op_flags = FI_COMPLETION | FI_DELIVERY_COMPLETE;
	h->rx_attr->op_flags = FI_COMPLETION;
	h->tx_attr->msg_order =
		FI_ORDER_SAS | FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW;
	h->rx_attr->msg_order = FI_ORDER_SAS;
	h->ep_attr->mem_tag_format = 0x00c000007fffffffULL;
	struct fi_info *info = ask(FI_VERSION(1, 17), h, 0, 0);
	EQUAL(info->domain_attr->threading, FI_THREAD_DOMAIN);
	EQUAL(info->domain_attr->av_type, FI_AV_TABLE);
	EQUAL(info->domain_attr->mr_mode, 0);
	EQUAL(info->tx_attr->op_flags, h->tx_attr->op_flags);
	CHECK(info->domain_attr->cq_data_size >= 4);
	CHECK(info->domain_attr->max_ep_tx_ctx <= 1);
	CHECK(info->ep_attr->max_order_raw_size == SIZE_MAX);
	lf.freeinfo(info);
	lf.freeinfo(h);
	lf.freeinfo(first);
}

static void open_mpi(void)
{
	test_name = "what Open MPI asks";
	/* Messages, with device memory first. */
	struct fi_info *h = blank();
	h->caps = FI_MSG | FI_TAGGED | FI_LOCAL_COMM | FI_REMOTE_COMM | FI_DIRECTED_RECV | FI_HMEM;
	h->mode = FI_CONTEXT | FI_CONTEXT2;
	h->domain_attr->mr_mode = FI_MR_HMEM | FI_MR_ALLOCATED;
	h->domain_attr->threading = FI_THREAD_SAFE;
	h->domain_attr->av_type = FI_AV_MAP;
	h->domain_attr->cq_data_size = 4;
	h->domain_attr->resource_mgmt = FI_RM_ENABLED;
	h->tx_attr->msg_order = h->rx_attr->msg_order = FI_ORDER_SAS;
	h->tx_attr->op_flags = h->rx_attr->op_flags = FI_COMPLETION;
	h->ep_attr->type = FI_EP_RDM;
	ask(FI_VERSION(1, 9), h, 0, -FI_ENODATA);
	h->caps &= ~FI_HMEM;
	h->domain_attr->mr_mode = FI_MR_ALLOCATED;
	struct fi_info *info = ask(FI_VERSION(1, 9), h, 0, 0);
	EQUAL(info->domain_attr->mr_mode, 0);
	EQUAL(info->domain_attr->threading, FI_THREAD_SAFE);
	EQUAL(info->domain_attr->av_type, FI_AV_MAP);
	CHECK(!(info->caps & (FI_RMA | FI_ATOMIC | FI_READ | FI_WRITE)));
	CHECK(info->ep_attr->mem_tag_format >> 63);
	/* One-sided operations, with the objects of the first. */
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	EQUAL(lf.fabric(info->fabric_attr, &fabric, NULL), 0);
	EQUAL(fi_domain(fabric, info, &domain, NULL), 0);
	struct fi_info *b = blank();
	b->caps = FI_RMA | FI_ATOMIC;
	b->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
	b->tx_attr->op_flags = FI_DELIVERY_COMPLETE | FI_COMPLETION;
	b->rx_attr->op_flags = FI_COMPLETION;
	b->tx_attr->iov_limit = b->rx_attr->iov_limit = 1;
	b->fabric_attr->fabric = fabric;
	b->domain_attr->domain = domain;
	struct fi_info *rma = ask(FI_VERSION(1, 9), b, 0, 0);
	CHECK(rma->fabric_attr->fabric == fabric && rma->domain_attr->domain == domain);
	EQUAL(fi_close(&domain->fid), 0);
	EQUAL(fi_close(&fabric->fid), 0);
	b->fabric_attr->fabric = NULL;
	b->domain_attr->domain = NULL;
	lf.freeinfo(rma);
	lf.freeinfo(b);
	lf.freeinfo(info);
	lf.freeinfo(h);
}

static void refusals(void)
{
	test_name = "refusals";
	struct fi_info *h;
#define REFUSED(change)                                                                                  \
	do {                                                                                             \
		h = blank();                                                                             \
		change;                                                                                  \
		test_name = #change;                                                                     \
		ask(FI_VERSION(1, 17), h, 0, -FI_ENODATA);                                               \
		lf.freeinfo(h);                                                                          \
	} while (0)
	REFUSED(h->caps = FI_COLLECTIVE);
	REFUSED(h->caps = FI_TAGGED | FI_NAMED_RX_CTX);
	REFUSED(h->caps = FI_RMA | FI_RMA_EVENT);
	REFUSED(h->ep_attr->type = FI_EP_MSG);
	REFUSED(h->ep_attr->type = FI_EP_DGRAM);
	REFUSED(h->addr_format = FI_SOCKADDR_IN);
	REFUSED(h->domain_attr->data_progress = FI_PROGRESS_AUTO);
	REFUSED(h->domain_attr->cq_data_size = 9);
	REFUSED(h->tx_attr->inject_size = 1 << 20);
	REFUSED(h->tx_attr->iov_limit = 1000);
	REFUSED(h->tx_attr->msg_order = FI_ORDER_WAS);
	REFUSED(h->tx_attr->op_flags = FI_COMMIT_COMPLETE);
	REFUSED(h->tx_attr->comp_order = FI_ORDER_SAS);
	REFUSED(h->fabric_attr->name = strdup("elsewhere"));
	REFUSED(h->domain_attr->name = strdup("elsewhere"));
	REFUSED(h->caps = FI_MSG | FI_HMEM);
	REFUSED(h->caps = 1ULL << 55); /* a bit that means nothing */
	REFUSED(h->domain_attr->control_progress = FI_PROGRESS_AUTO);
	REFUSED(h->domain_attr->mr_key_size = 9);
	REFUSED(h->domain_attr->mr_mode = FI_MR_BASIC | FI_MR_VIRT_ADDR);
	REFUSED(h->domain_attr->mr_mode = FI_MR_SCALABLE | FI_MR_LOCAL);
	REFUSED(h->domain_attr->max_ep_tx_ctx = 2);
	REFUSED(h->domain_attr->max_ep_stx_ctx = 1);
	REFUSED(h->domain_attr->mr_iov_limit = 2);
	REFUSED(h->domain_attr->threading = 77);
	REFUSED(h->domain_attr->av_type = 77);
	REFUSED(h->rx_attr->op_flags = FI_INJECT);
	REFUSED(h->rx_attr->comp_order = FI_ORDER_SAS);
	REFUSED(h->rx_attr->iov_limit = 1000);
	REFUSED(h->tx_attr->rma_iov_limit = 2);
	REFUSED(h->tx_attr->size = SIZE_MAX);
	REFUSED(h->tx_attr->caps = FI_COLLECTIVE);
	REFUSED(h->rx_attr->caps = FI_COLLECTIVE);
	REFUSED(h->ep_attr->max_msg_size = SIZE_MAX);
	REFUSED(h->ep_attr->msg_prefix_size = 8);
	REFUSED(h->ep_attr->tx_ctx_cnt = 2);
	REFUSED(h->ep_attr->protocol = FI_PROTO_RXM);
	REFUSED(h->ep_attr->auth_key_size = 8; h->ep_attr->auth_key = calloc(1, 8));
	test_name = "the internal query of a layered provider";
	h = blank();
	ask(FI_VERSION(1, 17), h, 1ULL << 59, -FI_ENODATA);
	lf.freeinfo(h);
}

#define NEWEST (lf.version() < FI_VERSION(2, 5) ? FI_VERSION(1, 17) : FI_VERSION(2, 5))

/* What each attribute is answered with: the table of the checker that all built-in providers share. */
static void attributes(void)
{
	struct fi_info *h, *i;
#define ANSWER(change, fact)                                                                             \
	do {                                                                                             \
		h = blank();                                                                             \
		h->mode = FI_CONTEXT | FI_CONTEXT2;                                                      \
		change;                                                                                  \
		test_name = #change;                                                                     \
		i = ask(NEWEST, h, 0, 0);                                                                \
		CHECK(fact);                                                                             \
		lf.freeinfo(i);                                                                          \
		lf.freeinfo(h);                                                                          \
	} while (0)
	/* Capabilities: primary ones as hinted, secondary ones all, modifiers that belong to them, FI_SOURCE on demand. */
	const uint64_t secondary = FI_MULTI_RECV | FI_LOCAL_COMM | FI_REMOTE_COMM;
	ANSWER(h->caps = 0, (i->caps & (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV)) ==
				    (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV));
	ANSWER(h->caps = FI_MSG, i->caps == (FI_MSG | FI_SEND | FI_RECV | secondary));
	ANSWER(h->caps = FI_TAGGED | FI_SEND, i->caps == (FI_TAGGED | FI_SEND | secondary));
	ANSWER(h->caps = FI_RMA | FI_REMOTE_READ, i->caps == (FI_RMA | FI_REMOTE_READ | secondary));
	ANSWER(h->caps = FI_ATOMIC, i->caps == (FI_ATOMIC | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | secondary));
	ANSWER(h->caps = FI_MSG | FI_SOURCE, i->caps & FI_SOURCE && i->rx_attr->caps & FI_SOURCE);
	ANSWER(h->caps = FI_MSG | FI_DIRECTED_RECV | FI_MULTI_RECV, !(i->caps & (FI_TAGGED | FI_SOURCE)) && i->caps & FI_DIRECTED_RECV);
	ANSWER(h->caps = FI_MSG | FI_TAGGED, (i->tx_attr->caps & (FI_RECV | FI_DIRECTED_RECV)) == 0 && !(i->rx_attr->caps & FI_SEND));
	/* Modes: none is needed. */
	ANSWER(h->mode = 0, i->mode == 0 && i->tx_attr->mode == 0 && i->rx_attr->mode == 0 && i->domain_attr->mode == 0);
	ANSWER(h->mode = ~0ULL, i->mode == 0);
	/* Registration modes: none is needed either; the two old ones where they are hinted alone. */
	static const int bits[] = {0, 0x4, 0x8, 0x10, 0x20, 0x40, 0x70, 0x80, 0x200, 0x400, 0x670};
	for (size_t k = 0; k < sizeof bits / sizeof *bits; k++)
		ANSWER(h->domain_attr->mr_mode = bits[k], i->domain_attr->mr_mode == 0);
	ANSWER(h->domain_attr->mr_mode = FI_MR_BASIC, i->domain_attr->mr_mode == FI_MR_BASIC);
	ANSWER(h->domain_attr->mr_mode = FI_MR_SCALABLE, i->domain_attr->mr_mode == FI_MR_SCALABLE);
	/* Levels and kinds: the hint's own. */
	static const int threading[] = {FI_THREAD_SAFE, FI_THREAD_FID, FI_THREAD_DOMAIN, FI_THREAD_COMPLETION, FI_THREAD_ENDPOINT};
	for (size_t k = 0; k < 5; k++)
		ANSWER(h->domain_attr->threading = threading[k], i->domain_attr->threading == (unsigned)threading[k]);
	ANSWER(h->domain_attr->threading = FI_THREAD_UNSPEC, i->domain_attr->threading == FI_THREAD_SAFE);
	ANSWER(h->domain_attr->control_progress = FI_PROGRESS_MANUAL, i->domain_attr->control_progress == FI_PROGRESS_MANUAL);
	ANSWER(h->domain_attr->data_progress = FI_PROGRESS_UNSPEC, i->domain_attr->data_progress == FI_PROGRESS_MANUAL);
	ANSWER(h->domain_attr->control_progress = 3, i->domain_attr->control_progress == 3); /* "unified", of 2.x */
	ANSWER(h->domain_attr->av_type = FI_AV_MAP, i->domain_attr->av_type == FI_AV_MAP);
	ANSWER(h->domain_attr->av_type = FI_AV_TABLE, i->domain_attr->av_type == FI_AV_TABLE);
	ANSWER(h->domain_attr->resource_mgmt = FI_RM_ENABLED, i->domain_attr->resource_mgmt == FI_RM_ENABLED);
	ANSWER(h->domain_attr->resource_mgmt = FI_RM_DISABLED, i->domain_attr->resource_mgmt == FI_RM_DISABLED);
	ANSWER(h->domain_attr->resource_mgmt = FI_RM_UNSPEC, i->domain_attr->resource_mgmt == FI_RM_ENABLED);
	/* Sizes: the hint where less is of use, else our own most. */
	ANSWER(h->domain_attr->cq_data_size = 4, i->domain_attr->cq_data_size == 8);
	ANSWER(h->domain_attr->mr_key_size = 2, i->domain_attr->mr_key_size == 8);
	ANSWER(h->tx_attr->size = 17, i->tx_attr->size == 17);
	ANSWER(h->rx_attr->size = 4000, i->rx_attr->size == 4000);
	ANSWER(h->tx_attr->iov_limit = 1, i->tx_attr->iov_limit == 1);
	ANSWER(h->rx_attr->iov_limit = 0, i->rx_attr->iov_limit >= 4 && i->tx_attr->iov_limit >= 4 && i->tx_attr->rma_iov_limit >= 1);
	ANSWER(h->tx_attr->inject_size = 64, i->tx_attr->inject_size >= 4096);
	ANSWER(h->ep_attr->max_msg_size = 1 << 20, i->ep_attr->max_msg_size == 1 << 20);
	ANSWER(h->ep_attr->max_msg_size = 0, i->ep_attr->max_msg_size > 1ULL << 40);
	ANSWER(h->ep_attr->tx_ctx_cnt = 1, i->domain_attr->max_ep_tx_ctx == 1 && i->domain_attr->max_ep_rx_ctx == 1);
	ANSWER(h->ep_attr->max_order_waw_size = 100, i->ep_attr->max_order_raw_size == SIZE_MAX &&
							     i->ep_attr->max_order_war_size == SIZE_MAX && i->ep_attr->max_order_waw_size == SIZE_MAX);
	ANSWER(h->ep_attr->mem_tag_format = 0xff, i->ep_attr->mem_tag_format == 0xaaaaaaaaaaaaaaaaULL);
	/* Orders: all that are kept; no order of completions. */
	const uint64_t orders = FI_ORDER_SAS | FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW;
	ANSWER(h->tx_attr->msg_order = 0, (i->tx_attr->msg_order & orders) == orders && (i->rx_attr->msg_order & FI_ORDER_SAS));
	ANSWER(h->tx_attr->msg_order = FI_ORDER_SAS, i->tx_attr->comp_order == 0 && i->rx_attr->comp_order == 0);
	/* Flags of operations: echoed. */
	static const uint64_t flags[] = {0, FI_COMPLETION, FI_INJECT, FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE,
					 FI_COMPLETION | FI_DELIVERY_COMPLETE};
	for (size_t k = 0; k < sizeof flags / sizeof *flags; k++)
		ANSWER(h->tx_attr->op_flags = flags[k], i->tx_attr->op_flags == flags[k]);
	ANSWER(h->rx_attr->op_flags = FI_COMPLETION | FI_MULTI_RECV, i->rx_attr->op_flags == (FI_COMPLETION | FI_MULTI_RECV));
	/* Names: our own are taken back. */
	h = ask(NEWEST, NULL, 0, 0);
	char *fabric = strdup(h->fabric_attr->name), *domain = strdup(h->domain_attr->name);
	lf.freeinfo(h);
	ANSWER(h->fabric_attr->name = strdup(fabric), !strcmp(i->fabric_attr->name, fabric));
	ANSWER(h->domain_attr->name = strdup(domain), !strcmp(i->domain_attr->name, domain));
	free(fabric);
	free(domain);
	/* An answer tells one thing only of what it is about. */
	ANSWER(h->ep_attr->type = FI_EP_RDM, i->ep_attr->type == FI_EP_RDM && i->ep_attr->protocol && i->addr_format != FI_FORMAT_UNSPEC);
	test_name = "the name of the provider";
	i = ask(NEWEST, NULL, 0, 0);
	EQUAL(strcmp(i->fabric_attr->prov_name, "isthmus"), 0); /* the core's doing: no prefix */
	CHECK(i->fabric_attr->prov_version && i->fabric_attr->api_version == NEWEST);
	lf.freeinfo(i);
}

/* What Intel MPI asks: first with version 0, then with what it was told. */
static void intel_mpi(void)
{
	test_name = "what Intel MPI asks";
	struct fi_info *first = ask(0, NULL, 0, 0);
	CHECK(first->domain_attr->mr_mode == 0 || first->domain_attr->mr_mode == FI_MR_SCALABLE || first->domain_attr->mr_mode == FI_MR_BASIC);
	struct fi_info *h = blank();
	h->caps = first->caps;
	h->mode = FI_CONTEXT | FI_CONTEXT2 | FI_ASYNC_IOV | FI_RX_CQ_DATA;
	h->domain_attr->mode = 1ULL << 53; /* FI_RESTRICTED_COMP */
	h->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	h->domain_attr->threading = FI_THREAD_DOMAIN;
	h->domain_attr->control_progress = h->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	h->domain_attr->resource_mgmt = FI_RM_ENABLED;
	h->domain_attr->av_type = FI_AV_TABLE;
	h->tx_attr->msg_order = h->rx_attr->msg_order = FI_ORDER_SAS;
	h->tx_attr->op_flags = h->rx_attr->op_flags = FI_COMPLETION;
	h->ep_attr->type = FI_EP_RDM;
	struct fi_info *i = ask(FI_VERSION(1, 5), h, 0, 0);
	EQUAL(i->domain_attr->threading, FI_THREAD_DOMAIN);
	EQUAL(i->domain_attr->mr_mode, 0);
	lf.freeinfo(i);
	h->domain_attr->threading = FI_THREAD_COMPLETION; /* I_MPI_THREAD_SPLIT */
	i = ask(FI_VERSION(1, 5), h, 0, 0);
	EQUAL(i->domain_attr->threading, FI_THREAD_COMPLETION);
	lf.freeinfo(i);
	lf.freeinfo(h);
	lf.freeinfo(first);
}

/* What Open MPI 4 asks: no FI_MSG, and registration modes of 0 and 0x70. */
static void open_mpi_4(void)
{
	test_name = "what Open MPI 4 asks";
	struct fi_info *h = blank();
	h->caps = FI_TAGGED | FI_LOCAL_COMM | FI_REMOTE_COMM | FI_DIRECTED_RECV;
	h->mode = FI_CONTEXT | FI_CONTEXT2;
	h->ep_attr->type = FI_EP_RDM;
	h->domain_attr->av_type = FI_AV_MAP;
	h->domain_attr->cq_data_size = 4;
	h->domain_attr->threading = FI_THREAD_DOMAIN;
	h->domain_attr->resource_mgmt = FI_RM_ENABLED;
	h->tx_attr->msg_order = h->rx_attr->msg_order = FI_ORDER_SAS;
	h->tx_attr->op_flags = h->rx_attr->op_flags = FI_COMPLETION;
	struct fi_info *i = ask(FI_VERSION(1, 5), h, 0, 0);
	CHECK(!(i->caps & FI_MSG) && i->caps & FI_TAGGED && i->caps & FI_DIRECTED_RECV);
	lf.freeinfo(i);
	h->caps = FI_RMA | FI_ATOMIC;
	h->domain_attr->mr_mode = 0x70;
	h->domain_attr->av_type = FI_AV_UNSPEC;
	h->domain_attr->threading = FI_THREAD_UNSPEC;
	h->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
	i = ask(FI_VERSION(1, 5), h, 0, 0);
	EQUAL(i->domain_attr->mr_mode, 0);
	EQUAL(i->tx_attr->op_flags, FI_DELIVERY_COMPLETE);
	lf.freeinfo(i);
	lf.freeinfo(h);
}

/* Every pointer of every table may be called without a look at it, but for those that libfabric checks itself. */
static void tables(void)
{
	test_name = "tables";
	struct fi_info *i = ask(NEWEST, NULL, 0, 0);
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_cntr *cntr;
	struct fid_ep *ep;
	struct fid_mr *mr;
	struct fid_eq *eq;
	void *ops;
	struct fi_av_attr aa = {.type = FI_AV_TABLE, .count = 10};
	struct fi_cq_attr ca = {.format = FI_CQ_FORMAT_TAGGED};
	struct fi_cntr_attr na = {.events = FI_CNTR_EVENTS_COMP};
	struct fi_eq_attr ea = {.wait_obj = FI_WAIT_UNSPEC};
	EQUAL(lf.fabric(i->fabric_attr, &fabric, NULL), 0);
	EQUAL(fi_domain(fabric, i, &domain, &ops), 0);
	CHECK(domain->fid.context == &ops);
	EQUAL(fi_av_open(domain, &aa, &av, NULL), 0);
	EQUAL(fi_cq_open(domain, &ca, &cq, NULL), 0);
	EQUAL(fi_cntr_open(domain, &na, &cntr, NULL), 0);
	EQUAL(fi_endpoint(domain, i, &ep, NULL), 0);
	EQUAL(fi_eq_open(fabric, &ea, &eq, NULL), 0);
	EQUAL(fi_mr_reg(domain, &i, sizeof i, FI_REMOTE_READ, 0, 1, 0, &mr, NULL), 0);
	const struct {
		const void *table;
		size_t least;
		unsigned long long absent; /* bits of places that may be null */
	} all[] = {
		/* tostr and ops_set are looked at by libfabric */
		{fabric->fid.ops, 40, 0x60}, {domain->fid.ops, 40, 0x60}, {av->fid.ops, 40, 0x60}, {cq->fid.ops, 40, 0x60},
		{cntr->fid.ops, 40, 0x60}, {ep->fid.ops, 40, 0x60}, {mr->fid.ops, 40, 0x60}, {eq->fid.ops, 40, 0x60},
		{fabric->ops, 48, 0x40},
		{domain->ops, 72, 0xe00}, /* query_atomic, query_collective, endpoint2 */
		{domain->mr, 32, 0},
		{av->ops, 56, 0x780}, /* av_set and authorization keys */
		{cq->ops, 64, 0}, {cntr->ops, 48, 0xc0}, {eq->ops, 48, 0},
		{ep->ops, 64, 0}, {ep->cm, 72, 0x200}, {ep->msg, 80, 0}, {ep->rma, 80, 0}, {ep->tagged, 80, 0}, {ep->atomic, 112, 0},
	};
	for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
		const uint64_t *t = all[k].table;
		CHECK(t && t[0] >= all[k].least);
		for (size_t w = 1; w < t[0] / 8; w++)
			if (!t[w] && !(all[k].absent >> w & 1))
				FAIL("table %zu: entry %zu is null", k, w);
	}
	/* What is not offered says so. */
	EQUAL(fi_open_ops(&domain->fid, "elsewhere", 0, &ops, NULL), -FI_ENOSYS);
	EQUAL(fi_open_ops(&ep->fid, "elsewhere", 0, &ops, NULL), -FI_ENOSYS);
	struct fid_ep *other;
	struct fid_stx *stx;
	CHECK(fi_scalable_ep(domain, i, &other, NULL) < 0);
	EQUAL(fi_srx_context(domain, NULL, &other, NULL), -FI_ENOSYS);
	EQUAL(fi_stx_context(domain, NULL, &stx, NULL), -FI_ENOSYS);
	CHECK(fi_connect(ep, &i, NULL, 0) < 0 && fi_accept(ep, NULL, 0) < 0 && fi_shutdown(ep, 0) < 0);
	size_t len = sizeof ops;
	CHECK(fi_getpeer(ep, &ops, &len) < 0 && fi_tx_size_left(ep) < 0);
	CHECK(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &len, sizeof len) < 0);
	EQUAL(fi_close(&mr->fid), 0);
	EQUAL(fi_close(&ep->fid), 0);
	EQUAL(fi_close(&cntr->fid), 0);
	EQUAL(fi_close(&cq->fid), 0);
	EQUAL(fi_close(&av->fid), 0);
	EQUAL(fi_close(&eq->fid), 0);
	EQUAL(fi_close(&domain->fid), 0);
	EQUAL(fi_close(&fabric->fid), 0);
	lf.freeinfo(i);
}

int main(int argc, char **argv)
{
	if (argc < 2)
		FAIL("usage: getinfo LIBFABRIC...");
	for (int round = 0; round < 3; round++) {
		void *libs[16];
		for (int i = 1; i < argc && i < 16; i++) {
			libs[i] = load(argv[i]);
			own_answers();
			mpich();
			open_mpi();
			open_mpi_4();
			intel_mpi();
			attributes();
			refusals();
			tables();
			if (round == 0)
				printf("getinfo: ok (libfabric %u.%u)\n", FI_MAJOR(lf.version()), FI_MINOR(lf.version()));
		}
		for (int i = 1; i < argc && i < 16; i++)
			EQUAL(dlclose(libs[i]), 0);
	}
	return 0;
}
