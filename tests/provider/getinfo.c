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

static struct fi_info *ask(uint32_t api, struct fi_info *hints, uint64_t flags, int expected)
{
	struct fi_info *info = NULL, *found = NULL;
	int r = lf.getinfo(api, NULL, NULL, flags, hints, &info);
	if (expected == 0 && r != 0)
		FAIL("refused with %d", r);
	/* Without a name among the hints others answer too. */
	for (struct fi_info *i = info; i && r == 0; i = i->next)
		if (!strcmp(i->fabric_attr->prov_name, "isthmus"))
			found = lf.dupinfo(i);
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
	test_name = "the internal query of a layered provider";
	h = blank();
	ask(FI_VERSION(1, 17), h, 1ULL << 59, -FI_ENODATA);
	lf.freeinfo(h);
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
			refusals();
			if (round == 0)
				printf("getinfo: ok (libfabric %u.%u)\n", FI_MAJOR(lf.version()), FI_MINOR(lf.version()));
		}
		for (int i = 1; i < argc && i < 16; i++)
			EQUAL(dlclose(libs[i]), 0);
	}
	return 0;
}
