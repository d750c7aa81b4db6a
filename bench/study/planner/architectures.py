"""The public architectures that are split: small ones of every family of torchvision, timm and smp.

Names stand below the side of the images for which they are built; architectures of one size have their own.
"""

from __future__ import annotations

from typing import Final

_TORCHVISION: Final = {
    96: """
        alexnet densenet121 efficientnet_b0 googlenet mnasnet0_5 mobilenet_v2 mobilenet_v3_small regnet_x_400mf
        regnet_y_400mf resnet18 resnet50 resnext50_32x4d shufflenet_v2_x0_5 squeezenet1_1 convnext_tiny vgg11_bn
        inception_v3:107 swin_t vit_b_32:224
        densenet161 densenet169 densenet201 efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_v2_s
        mnasnet0_75 mnasnet1_0 mnasnet1_3 mobilenet_v3_large regnet_x_800mf regnet_x_1_6gf regnet_x_3_2gf
        regnet_y_800mf regnet_y_1_6gf regnet_y_3_2gf resnet34 shufflenet_v2_x1_0 shufflenet_v2_x1_5
        shufflenet_v2_x2_0 squeezenet1_0 convnext_small swin_s swin_v2_t vgg11 vgg13 vgg13_bn wide_resnet50_2
        fcn_resnet50 deeplabv3_resnet50 deeplabv3_mobilenet_v3_large lraspp_mobilenet_v3_large
        maxvit_t:224 vit_b_16:224
    """,
}
_TIMM: Final = {
    96: """
        resnet10t resnet18d seresnet18 skresnet18 res2net50_14w_8s dla34 cspresnet50 ese_vovnet19b_dw gernet_s repvgg_a0
        mobileone_s0 lcnet_050 tinynet_e fbnetc_100 mixnet_s mobilenetv4_conv_small ghostnet_100 repghostnet_050
        rexnet_100 tf_efficientnet_lite0 convnext_atto convnextv2_atto starnet_s1 mambaout_femto poolformer_s12
        inception_next_atto repvit_m0_9 hrnet_w18_small efficientvit_b0 edgenext_xx_small fastvit_t8 mobilevit_xxs:128
        darknet53:128 selecsls42b:128 vit_tiny_patch16_224:224 deit_tiny_patch16_224:224 mixer_s32_224:224
        test_byobnet test_convnext test_convnext2 test_convnext3 test_efficientnet test_efficientnet_gn
        test_efficientnet_evos test_efficientnet_ln test_mambaout test_nfnet test_resnet
        gernet_m mobileone_s1 mobileone_s2 mobileone_s4 resnext26ts gcresnext26ts seresnext26ts bat_resnext26ts:256
        eca_resnext26ts repvgg_b0 convmixer_768_32 convmixer_1024_20_ks9_p14:112 convnext_femto convnext_pico
        convnext_pico_ols convnextv2_pico convnextv2_femto cpubone_nano cpubone_t0 cpubone_s0 csatv2:128 cs3darknet_s
        cs3darknet_focus_s darknet17 darknet21 cspdarknet53 cspresnext50 cspnext_tiny cspnext_s cspnext_m
        densenetblur121d dla46_c dla46x_c
        dla60_res2net dpn48b dpn68 edgenext_x_small edgenext_small efficientnet_lite0 tinynet_a tinynet_b tinynet_c
        tinynet_d mobilenet_edgetpu_v2_xs efficientnetv2_rw_t gc_efficientnetv2_rw_t tf_mixnet_s mnasnet_small
        efficientnet_es spnasnet_100 semnasnet_050 mobilenetv2_035 efficientvim_m1:224 efficientvim_m2:224
        efficientvit_b1 fasternet_t0 fasternet_t1 fasternet_s fastvit_t12 fastvit_s12 fastvit_sa12 focalnet_tiny_srf:224
        ghostnet_050 ghostnetv2_100 ghostnetv3_100 hardcorenas_a hardcorenas_b hardcorenas_c hardcorenas_d hgnet_tiny
        hgnetv2_b0 hgnetv2_b1 hrnet_w18_ssld hrnet_w18_small_v2 iformer_t:224 iformer_s:224 inception_next_tiny
        inception_v4:139 inception_resnet_v2:139 lcnetv2_small lcnet_035 lcnet_100 lowformer_b0 mambaout_tiny
        caformer_s18 convformer_s18 poolformerv2_s12 mobilenetv3_small_050 mobilenetv3_small_075 mobilenetv3_small_100
        tf_mobilenetv3_small_075 fbnetv3_b mobilevit_xs:128 mobilevit_s:128 mobilevitv2_050:128 mobilevitv2_100:128
        nextvit_small nf_resnet26 nf_seresnet26 nf_regnet_b0 pvt_v2_b0 pvt_v2_b1 rdnet_tiny regnetx_002 regnety_002
        regnetx_004_tv regnety_008_tv regnetz_005 repghostnet_058 repghostnet_080 repghostnet_100 repvit_m1_0
        res2net50_26w_4s res2next50 resnest14d resnest26d resnet14t resnetblur18 resnet26 resnet26d resnet26t
        resnet33ts ecaresnet26t resnetrs50 resnetv2_18 resnetv2_18d resnetv2_34 resnetv2_50 rexnet_130 rexnetr_100
        selecsls42 selecsls60 legacy_seresnet18 legacy_seresnet34 shvit_s1 shvit_s2 skresnet34 starnet_s2 starnet_s3
        tiny_vit_5m_224:224 tresnet_m ese_vovnet19b_slim ese_vovnet19b_slim_dw vovnet39a xception41:139
        legacy_xception:139 hieradet_small:224
    """,
    160: "test_maxvit test_coatnet test_vit test_vit2 test_vit3 test_vit4 test_vit_relpos",
    224: """
        cait_xxs24_224 coat_tiny coat_mini coatnet_pico_rw_224 convit_tiny crossvit_tiny_240:240 davit_tiny
        deit_tiny_distilled_patch16_224 deit3_small_patch16_224 efficientformerv2_s0 efficientvit_m0 efficientvit_m1
        eva02_tiny_patch14_224 gcvit_xxtiny gcvit_xtiny hiera_tiny_224 maxvit_pico_rw_256:256
        vit_srelpos_small_patch16_224 maxvit_nano_rw_256:256
        gmlp_ti16_224 mvitv2_tiny nest_tiny pit_ti_224 pit_xs_224 sequencer2d_s swiftformer_xs swin_s3_tiny_224
        swin_tiny_patch4_window7_224 swinv2_cr_tiny_224 swinv2_tiny_window8_256:256 tnt_s_patch16_224 twins_svt_small
        twins_pcpvt_small visformer_tiny vit_tiny_r_s16_p8_224 vit_relpos_small_patch16_224 vit_xsmall_patch16_clip_224
        flexivit_small:240 vitamin_small_224 volo_d1_224 xcit_nano_12_p16_224 halonet26t:256 botnet26t_256:256
        eca_halonext26ts:256 lambda_resnet26t:256
    """,
}
_SMP: Final = {
    64: " ".join(
        f"{architecture}-{encoder}"
        for encoder in ("resnet18", "mobilenet_v2", "efficientnet-b0")
        for architecture in ("unet", "unetplusplus", "fpn", "pspnet", "deeplabv3", "deeplabv3plus", "linknet", "manet")
    )
    + " pan-resnet18:128 upernet-resnet18 segformer-resnet18",
}


def architectures() -> list[tuple[str, str, int]]:
    libraries = {"torchvision": _TORCHVISION, "timm": _TIMM, "smp": _SMP}
    found = []
    for library, sizes in libraries.items():
        for size, names in sizes.items():
            for name, _, own in (entry.partition(":") for entry in names.split()):
                found.append((library, name, int(own or size)))
    return found
